"""A plan in the form that other tools read, one file per tool."""
