"""Reading of training steps: forward, backward and update as one graph."""
