"""HSDAG: its view of the graph, coarsening, features, network, learner, presets, placer."""
