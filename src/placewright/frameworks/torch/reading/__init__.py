"""Reading of PyTorch programs as computation graphs."""
