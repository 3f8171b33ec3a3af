"""Contracts of placers, frameworks, runtimes and workers, also for outside implementers."""
