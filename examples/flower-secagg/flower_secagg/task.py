"""What is yours to change: the model, and where a site's data comes from."""

import torch
from flwr.app import Context
from torch import Tensor, nn

from fedsps.data import load, partition
from fedsps.flower import SiteData


def model(context: Context) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def site_data(context: Context) -> SiteData:
    """This site's samples. Real sites would read a path of their own here: `context.node_config["data"]`."""
    digits = load("digits")
    site, sites = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    rows = partition("dirichlet", digits.targets, clients=sites, seed=0).rows[site]
    return SiteData(train=(torch.from_numpy(digits.inputs[rows]), torch.from_numpy(digits.targets[rows])))


def server_test(context: Context) -> tuple[Tensor, Tensor]:
    """The server's own test data; leave it out if the server has none."""
    digits = load("digits")
    return torch.from_numpy(digits.test_inputs), torch.from_numpy(digits.test_targets)
