"""A training step: forward, backward and update as one graph."""
