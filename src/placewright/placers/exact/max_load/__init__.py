"""Search and bounds for the max-load execution model without contiguity."""
