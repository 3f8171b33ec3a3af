"""One algorithm, one file; `registry` finds them by name."""
