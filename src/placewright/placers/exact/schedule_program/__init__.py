"""The constraint program of placement and order under execution model `event`."""
