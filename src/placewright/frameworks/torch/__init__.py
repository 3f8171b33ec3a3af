"""PyTorch: reads models, runs segments of them."""
