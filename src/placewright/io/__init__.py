"""Opens foreign files within limits, and writes our own files atomically."""
