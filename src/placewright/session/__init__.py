"""The steps behind the Python facade and the command line: model -> problem -> plan -> run."""
