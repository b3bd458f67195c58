"""Runs and reproduced pages as one interactive HTML page that needs no network."""
