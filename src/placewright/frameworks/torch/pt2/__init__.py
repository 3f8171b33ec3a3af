"""A `.pt2` file is data: what it holds is checked before PyTorch sees it."""
