"""`kafkad ingest`: topics into tables by one small file, each offset accounted for."""
