"""Runs at every site."""

from fedsps.flower import secagg_client_app
from flower_secagg.task import model, site_data

app = secagg_client_app(model, site_data)
