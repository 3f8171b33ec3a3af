"""The one truth about time and memory: kernels, evaluator, segments, timeline, bounds."""
