"""Runs at the server."""

from fedsps.flower import server_app
from flower_digits.task import model, server_test

app = server_app(model, server_test)
