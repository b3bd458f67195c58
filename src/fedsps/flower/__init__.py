"""The algorithms on real federations: a `ClientApp` and a `ServerApp` for Flower. Needs the extra `flower`.

What lives here carries the engine's exchanges over Flower's messages and knows no processes, keys or terminals (those
are `fedsps.deploy`'s). It imports `fedsps.runs` and what is below it, and it is the only place that imports `flwr`.

| file | concept |
| --- | --- |
| `config` | the run configuration of a Flower app: a plan, and what a federation needs beside it |
| `server`, `client` | the two sides; the server's one loop over rounds, repeats and refusals |
| `transport`, `plain`, `secagg` | the two ways in which answers travel: one by one, or as a sum that hides them |
| `protocol` | secure aggregation's messages, checked before they are believed |
| `courier` | messages to the nodes and back, weighed before they are read |
| `versions` | what a node runs, and whether it goes with what the server runs |
| `membership` | which node serves which partition, and how they are asked |
| `check` | what an honest answer looks like, and why another one is refused |
| `privacy` | differential privacy: clipping, noise, epsilon |
| `policy` | what a site asks of a run, and what its answers have cost so far |
| `table` | sites whose data is a table: the sums that they tell, the columns that they get |
| `store` | a client's own state on its own disk |
| `warm` | Flower's programs of a node, with apps forked from a process that has imported torch |
| `wire` | tensors to Flower's records and back |
"""

from importlib.util import find_spec

import lazy_loader

from fedsps.errors import ConfigurationError

if find_spec("flwr") is None:
    raise ConfigurationError("federations need Flower: pip install 'fedsps[flower]'")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # a client need not import the server
