"""A folder per library that runs models; each is found by its name."""
