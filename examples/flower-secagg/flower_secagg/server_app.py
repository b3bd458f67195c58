"""Runs at the server."""

from fedsps.flower import secagg_server_app
from flower_secagg.task import model, server_test

app = secagg_server_app(model, server_test)
