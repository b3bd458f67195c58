"""Data: where files come from, data sets as arrays, and their split over clients."""

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
