"""Liu et al. 2019: a fully connected grouper and a recurrent placer."""
