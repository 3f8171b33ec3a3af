"""How a person places a family of models by hand: one rule per family, for `placers.expert`."""
