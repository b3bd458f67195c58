"""The server is an honest one."""

from faulty.task import model
from fedsps.flower import server_app

app = server_app(model)
