"""Files of strangers opened within limits, our own written whole or not at all."""
