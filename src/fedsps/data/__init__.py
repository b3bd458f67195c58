"""Data: where files come from, data sets as arrays, and their split over clients.

What lives here finds, checks and reads data sets and the user's own files, deals them to clients, and holds the
clients' tensors. It imports `fedsps.core` alone; scikit-learn, pandas and pooch are imported where they are used.
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
