"""What executes segments for real: the concurrent runner, and one folder per runtime."""
