"""Data: where files come from, data sets as arrays, and their split over clients.

What lives here finds, checks and reads data sets and the user's own files, deals them to clients, and holds the
clients' tensors. It imports `fedsps.core` alone; scikit-learn, pandas and pooch are imported where they are used.

| file | concept |
| --- | --- |
| `sources` | files, known by the hash of their content, and where they come from |
| `load` | the named data sets as arrays |
| `read` | a table file as a data frame |
| `columns` | how a table's columns become inputs, fitted to sums over the training samples |
| `table` | a data frame with its roles, findings and clients |
| `own` | a user's own file as arrays |
| `partition` | which client holds which training rows |
| `clients` | all clients' samples in two tensors |
| `augment` | random crops and flips of a round's images |
"""

from typing import TYPE_CHECKING

import lazy_loader

from fedsps.data.load import LabelledData, load
from fedsps.data.own import from_file
from fedsps.data.partition import Partition, partition
from fedsps.data.sources import data_sets, fetch, status, verify

if TYPE_CHECKING:
    from fedsps.data.columns import Columns, sums
    from fedsps.data.table import Table

__getattr__, *_ = lazy_loader.attach(__name__, submod_attrs={"columns": ["Columns", "sums"], "table": ["Table"]})

__all__ = [
    "Columns",
    "LabelledData",
    "Partition",
    "Table",
    "data_sets",
    "fetch",
    "from_file",
    "load",
    "partition",
    "status",
    "sums",
    "verify",
]
