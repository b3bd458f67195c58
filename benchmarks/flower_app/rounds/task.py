"""Softmax regression of MNIST's shape on random data."""

import torch
from flwr.app import Context
from torch import nn

from fedsps.flower import SiteData

LOCAL_STEPS, BATCH, STEPSIZE = 5, 20, 0.1


def model(context: Context) -> nn.Module:
    return nn.Linear(784, 10)


def data(context: Context) -> SiteData:
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    return SiteData((torch.rand(600, 784, generator=generator), torch.randint(10, (600,), generator=generator)))
