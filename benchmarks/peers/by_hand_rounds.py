"""By hand in PyTorch: a loop over clients through autograd, or (`--fused`) all at once, the gradient written out."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from workload import BATCH, CLASSES, CLIENTS, FEATURES, LOCAL_STEPS, STEPSIZE, Work, clients, draw

torch.set_num_threads(1)
work, generator = Work(), np.random.default_rng(0)
data = [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in clients(work.samples)]


def one_after_another(server: torch.nn.Linear) -> None:
    ends = []
    for inputs, targets in data:
        local.load_state_dict(server.state_dict())
        for rows in torch.from_numpy(draw(generator, work.samples)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(local(inputs[rows]), targets[rows]).backward()
            optimizer.step()
        ends.append({name: value.clone() for name, value in local.state_dict().items()})
    server.load_state_dict({name: torch.stack([end[name] for end in ends]).mean(0) for name in ends[0]})


@torch.no_grad()
def all_at_once(server: torch.nn.Linear) -> None:
    weight = server.weight.T.repeat(CLIENTS, 1, 1)  # [clients, features, classes]
    bias = server.bias.repeat(CLIENTS, 1, 1)
    rows = torch.from_numpy(np.stack([draw(generator, work.samples) for _ in data])).view(CLIENTS, LOCAL_STEPS, BATCH)
    for step in rows.unbind(1):
        inputs, truth = all_inputs[each, step], all_targets[each, step]  # [clients, batch, *]
        slope: Tensor = (torch.baddbmm(bias, inputs, weight).softmax(-1) - truth) / BATCH
        weight.baddbmm_(inputs.mT, slope, alpha=-STEPSIZE)
        bias -= STEPSIZE * slope.sum(1, keepdim=True)
    server.weight.copy_(weight.mean(0).T)
    server.bias.copy_(bias.mean(0)[0])


each = torch.arange(CLIENTS)[:, None]
all_inputs = torch.stack([inputs for inputs, _ in data])
all_targets = torch.stack([F.one_hot(targets, CLASSES).float() for _, targets in data])
server, local = torch.nn.Linear(FEATURES, CLASSES), torch.nn.Linear(FEATURES, CLASSES)
optimizer = torch.optim.SGD(local.parameters(), lr=STEPSIZE)
torch.nn.init.zeros_(server.weight), torch.nn.init.zeros_(server.bias)
for _ in range(work.rounds):
    all_at_once(server) if "--fused" in work.rest else one_after_another(server)
    work.round_ends()
work.finish(server.weight.detach().T, server.bias.detach())
