"""Files before anything opens them; imports the standard library only."""
