"""The execution model `event`: a compiled discrete-event simulation of one placement."""
