"""Benchmarks: kafkad against JVM Kafka and against the bare loop. `make bench`, or `python -m bench
--help`.
"""
