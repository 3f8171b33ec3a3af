"""One self-contained page: what was placed where, why, and what would change it."""
