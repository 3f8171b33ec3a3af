"""Frameworks: a folder per library that reads models and runs segments of them."""
