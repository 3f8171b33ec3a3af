"""Plans that are loaded once and called many times, and those that `pw.run` keeps loaded."""
