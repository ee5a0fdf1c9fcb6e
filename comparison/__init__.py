"""Pairing, comparing and showing results, and running the matrix. Needs neither torch nor lightning."""
