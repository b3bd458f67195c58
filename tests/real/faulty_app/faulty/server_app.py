"""The server is an honest one."""

from faulty.task import model
from fedsps.engine.flower import server_app

app = server_app(model)
