"""Levels of ever fewer groups, and the search on them from few groups to single units."""
