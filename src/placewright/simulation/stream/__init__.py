"""A stream of samples through a placement: what happens when many samples are in flight."""
