"""Safe loading of `.pt2` files: everything in them is checked before PyTorch reads it."""
