"""The runtime `openvino`."""
