"""What a portfolio needs beside its members: a first placement, compiled kernels, two at once."""
