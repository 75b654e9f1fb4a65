"""Decodes record values (JSON, CSV, Avro, Protobuf) into Arrow columns, by a schema and a table of options.

Knows neither PySpark nor a broker: the Spark connector, `kafkad ingest` and the client library share it. The native
decoders are in `kafkad/_native/values`."""
