"""FedLab: its standalone pipeline with FedAvg's server and trainer; PyTorch's loader draws the batches."""

import sys
from unittest.mock import MagicMock

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from workload import BATCH, CLASSES, CLIENTS, FEATURES, LOCAL_STEPS, STEPSIZE, Work, clients

# FedLab's image data sets import it; they are not used here, and it does not load beside every build of torch
sys.modules["torchvision"] = MagicMock()

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Data:
    """What the trainer asks of a data set."""

    def __init__(self, samples):
        pairs = [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in clients(samples)]
        self.sets = [TensorDataset(*pair) for pair in pairs]

    def get_dataloader(self, number, batch_size):
        rows = RandomSampler(self.sets[number], num_samples=LOCAL_STEPS * batch_size)
        return DataLoader(self.sets[number], sampler=BatchSampler(rows, batch_size, False), batch_size=None)


class Pipeline(StandalonePipeline):
    """FedLab's own rounds; it calls `evaluate` at the end of each."""

    def evaluate(self):
        work.round_ends()


torch.set_num_threads(1)
work = Work()
model = torch.nn.Linear(FEATURES, CLASSES)
torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
trainer = FedAvgSerialClientTrainer(model, CLIENTS)
trainer.setup_dataset(Data(work.samples))
trainer.setup_optim(epochs=1, batch_size=BATCH, lr=STEPSIZE)
handler = FedAvgServerHandler(model, global_round=work.rounds, sample_ratio=1.0)
Pipeline(handler, trainer).main()
work.finish(handler.model.weight.detach().T, handler.model.bias.detach())
