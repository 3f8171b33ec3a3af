"""What executes segments for real: the concurrent runner, and one file per runtime."""
