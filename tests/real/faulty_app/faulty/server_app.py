"""The server is an honest one."""

from fedsps.engine.flower import server_app

from faulty.task import model

app = server_app(model)
