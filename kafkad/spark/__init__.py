"""The PySpark data source `kafkad`: reads and writes topics of any Kafka broker, without a jar."""
