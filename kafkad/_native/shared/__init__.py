"""Memory that the processes of one broker share, and messages between them."""
