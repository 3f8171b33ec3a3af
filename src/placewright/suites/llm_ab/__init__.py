"""Published comparisons of placements of language models, predicted and judged."""
