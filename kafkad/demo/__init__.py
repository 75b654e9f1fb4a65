"""Spark beside kafkad: the ingest job that lands a topic as Parquet, and the demo that proves it."""
