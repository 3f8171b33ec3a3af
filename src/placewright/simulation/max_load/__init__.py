"""The execution model `max-load`: seconds per sample of a full pipeline."""
