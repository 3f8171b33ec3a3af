"""Programs of an engine of language models: found, started, and read by what they print."""
