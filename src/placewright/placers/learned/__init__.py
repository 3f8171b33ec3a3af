"""Policies that learn to place, and what they share: features, encoders, sampling, training."""
