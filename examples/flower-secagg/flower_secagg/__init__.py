"""Handwritten digits over several sites; the server sees sums alone."""
