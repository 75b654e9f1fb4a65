"""Values of records as columns for Spark: Arrow, JSON, Avro, protobuf, CSV. The broker does not use it."""
