"""pfl: federated averaging on its simulated backend; a user's data set is the five batches of the round."""

import asyncio

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from workload import BATCH, CLASSES, CLIENTS, FEATURES, STEPSIZE, Work, clients, draw


class Model(torch.nn.Linear):
    def loss(self, inputs, targets):
        return F.cross_entropy(self(inputs), targets)

    def metrics(self, inputs, targets):  # asked for in the first round, which is not timed
        return {"loss": Weighted(self.loss(inputs, targets).item(), 1)}


class Clock(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        work.round_ends()
        return False, Metrics()


def user(number):
    rows = torch.from_numpy(draw(generator, work.samples))
    return PyTorchTensorDataset((data[number][0][rows], data[number][1][rows]))


torch.set_num_threads(1)
asyncio.set_event_loop(asyncio.new_event_loop())
work, generator = Work(), np.random.default_rng(0)
data = [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in clients(work.samples)]
users = FederatedDataset(user, MinimizeReuseUserSampler(list(range(CLIENTS))))
module = Model(FEATURES, CLASSES)
torch.nn.init.zeros_(module.weight), torch.nn.init.zeros_(module.bias)
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=work.rounds, evaluation_frequency=10**9, train_cohort_size=CLIENTS, val_cohort_size=0
    ),
    SimulatedBackend(users, users),
    model,
    NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=STEPSIZE),
    callbacks=[Clock()],
    send_metrics_to_platform=False,  # else it prints them
)
work.finish(module.weight.detach().T, module.bias.detach())
