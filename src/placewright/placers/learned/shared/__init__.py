"""Settings, features, networks and training steps that several learned placers use."""
