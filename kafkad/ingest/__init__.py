"""`kafkad ingest`: copy topics into tables, driven by one small file, with every offset accounted for."""
