"""Simulation of time and memory: execution models, evaluator, segments, timeline, bounds."""
