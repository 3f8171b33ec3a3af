"""Parts between units that every other unit is an ancestor or a descendant of."""
