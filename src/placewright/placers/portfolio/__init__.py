"""The portfolio `auto`: its members, their turns, and who takes the turns."""
