"""The runtime `torch`."""
