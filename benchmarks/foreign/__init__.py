"""Models that nobody here made: read, placed on two devices, run, and compared."""
