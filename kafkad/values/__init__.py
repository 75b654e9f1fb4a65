"""Decode record values (JSON, CSV, Avro, Protobuf) into Arrow columns, by a schema and a table of options.

This package needs neither PySpark nor a broker. The Spark connector and `kafkad ingest` use it, and the
client may. The native decoders are in `kafkad/_native/values`."""
