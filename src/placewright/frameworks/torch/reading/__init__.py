"""PyTorch programs -> computation graphs."""
