"""The algorithms on real federations: a `ClientApp` and a `ServerApp` for Flower. Needs the extra `flower`."""

from fedsps.errors import ConfigurationError

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ConfigurationError("federations need Flower: pip install 'fedsps[flower]'") from error

from fedsps.engine.flower.server import federate, server_app
from fedsps.engine.flower.settings import Settings
from fedsps.engine.flower.site import SiteData, client_app

__all__ = ["Settings", "SiteData", "client_app", "federate", "server_app"]
