"""Foreign models: read, placed on two devices, run, and compared."""
