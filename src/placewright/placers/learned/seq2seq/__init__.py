"""Mirhoseini et al. 2017: a sequence-to-sequence policy over co-located groups."""
