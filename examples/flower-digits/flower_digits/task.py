"""What is yours to change: the model, and where a site's data comes from."""

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Context
from torch import Tensor, nn

from fedsps.data import LabelledData, load, partition
from fedsps.flower import SiteData


def model(context: Context) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def site_data(context: Context) -> SiteData:
    """This site's samples; a fifth of them are kept for its own test.

    Real sites would read a path of their own here: `context.node_config["data"]`.
    """
    digits = load("digits")
    site, sites = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    kind = str(context.run_config["digits.partition"])
    rows = partition(kind, digits.targets, clients=sites, seed=0).rows[site]
    test = np.arange(len(rows)) % 5 == 0
    return SiteData(train=pair(digits, rows[~test]), test=pair(digits, rows[test]))


def server_test(context: Context) -> tuple[Tensor, Tensor]:
    """The server's own test data; leave it out if the server has none."""
    digits = load("digits")
    return torch.from_numpy(digits.test_inputs), torch.from_numpy(digits.test_targets)


def pair(data: LabelledData, rows: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(data.inputs[rows]), torch.from_numpy(data.targets[rows])
