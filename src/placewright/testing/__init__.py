"""The contracts that every placer, reader and runtime passes, for outsiders too."""
