"""Sockets and requests: the event loop, connections, Produce and Fetch."""
