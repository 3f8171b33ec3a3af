"""The runtime `onnxruntime`."""
