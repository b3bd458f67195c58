import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def unequal_clients():
    """Five clients of 3 to 34 samples, other labels and scales on each, in float64."""
    return make_clients()


def make_clients(features=4, classes=3, sizes=(3, 8, 13, 21, 34), seed=0):
    random = np.random.default_rng(seed)
    clients = []
    for number, size in enumerate(sizes):
        inputs = random.normal(size=(size, features)) * (1 + number)
        targets = (random.integers(0, 2, size=size) + number) % classes
        clients.append((torch.from_numpy(inputs), torch.from_numpy(targets)))
    return clients
