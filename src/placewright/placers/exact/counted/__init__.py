"""The integer program of `sequential-ip`, which counts items that are alike."""
