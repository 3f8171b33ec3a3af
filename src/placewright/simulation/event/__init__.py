"""The execution model `event`: one placement through time, compiled."""
