"""kafkad: an Apache Kafka broker in Python with a Cython core."""

__version__ = "0.1.0"
