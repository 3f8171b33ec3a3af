"""A process that may read little, write to one folder, and reach nothing else (Linux)."""
