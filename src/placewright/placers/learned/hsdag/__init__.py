"""HSDAG (Duan et al. 2024): placer, presets, graph, network, algorithm, training."""
