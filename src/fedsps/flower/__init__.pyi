from .client import SiteData as SiteData
from .client import client_app as client_app
from .config import RunConfig as RunConfig
from .privacy import epsilon as epsilon
from .secagg import secagg_client_app as secagg_client_app
from .secagg import secagg_server_app as secagg_server_app
from .server import federate as federate
from .server import server_app as server_app
