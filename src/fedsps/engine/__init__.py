"""Engines own the loops: one client after another (`loop`), or all active clients at once (`stacked`)."""
