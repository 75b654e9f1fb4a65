"""Decode record values (JSON, Avro, Protobuf, CSV) into Arrow columns for Spark. The broker does not use
it."""
