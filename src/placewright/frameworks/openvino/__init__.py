"""OpenVINO: reads models, runs segments of them."""
