"""Execution of segments: the concurrent runner, and the interfaces of frameworks and runtimes."""
