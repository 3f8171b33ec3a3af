"""Post: cross-entropy and proximal policy steps on one softmax per group."""
