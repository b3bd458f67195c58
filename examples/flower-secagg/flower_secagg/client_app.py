"""Runs at every site."""

from fedsps.engine.flower.secagg import secagg_client_app
from flower_secagg.task import model, site_data

app = secagg_client_app(model, site_data)
