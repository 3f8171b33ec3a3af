"""A fixed suite of placement problems: every placer on every problem, profiles, `bench auto`."""
