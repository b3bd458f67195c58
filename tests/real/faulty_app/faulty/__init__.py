"""Clients that misbehave when they are told to."""
