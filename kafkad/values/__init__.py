"""Decodes record values (JSON, CSV, Avro, Protobuf) into Arrow columns, by a schema and a table of options.

It knows neither PySpark nor a broker. The Spark connector and `kafkad ingest` use it; the client may too.
The native decoders are in `kafkad/_native/values`."""
