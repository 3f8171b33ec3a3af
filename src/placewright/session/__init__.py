"""The steps from a request to a problem, a plan, a run: one way for Python and the command line."""
