"""A small blocking client: what `kafkad topics`, `groups`, `produce` and `consume` are made of.

For applications, librdkafka, the Java client and their kin are the better choice; this one has no threads, no
dependencies, and starts in milliseconds.
"""
