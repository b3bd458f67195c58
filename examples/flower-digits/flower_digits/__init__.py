"""Handwritten digits over several sites."""
