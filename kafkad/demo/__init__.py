"""The demo: real flights through kafkad and `kafkad ingest` into Parquet, proved row by row."""
