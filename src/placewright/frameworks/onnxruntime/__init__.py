"""ONNX Runtime: reads models, runs segments of them."""
