"""Placers that do not search: one device, even shares, round robin, random, expert."""
