"""Data: where files come from, data sets as arrays, and their split over clients.

What lives here finds, checks and reads data sets and the user's own files, deals them to clients, and holds the
clients' tensors. It imports `fedsps.core` alone; scikit-learn, pandas and pooch are imported where they are used.

| file | concept |
| --- | --- |
| `sources` | files, known by the hash of their content, and where they come from |
| `load` | the named data sets as arrays |
| `own` | a user's `.npz` or `.csv` as arrays |
| `partition` | which client holds which training rows |
| `clients` | all clients' samples in two tensors |
| `augment` | random crops and flips of a round's images |
"""

from fedsps.data.load import LabelledData, load
from fedsps.data.own import from_file
from fedsps.data.partition import Partition, partition
from fedsps.data.sources import data_sets, fetch, status, verify

__all__ = [
    "LabelledData",
    "Partition",
    "data_sets",
    "fetch",
    "from_file",
    "load",
    "partition",
    "status",
    "verify",
]
