"""HSDAG (Duan et al. 2024): placer, graph, network, algorithm."""
