"""Bytes and their meaning: primitive types, messages, batches and records, checksums."""
