"""Language models: the problem of a request, placements that the engine can express, the answer."""
