"""Runs at every site."""

from fedsps.flower import client_app
from flower_digits.task import model, site_data

app = client_app(model, site_data)
