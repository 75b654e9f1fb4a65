"""A small blocking client, which kafkad's commands use.

It has no dependencies and starts in milliseconds. For applications, librdkafka or the Java client is the
better choice.
"""
