"""Logistic regression on made-up clients whose classes overlap: convex, with a minimum that L-BFGS finds."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F

from fedsps.core.streams import generator
from fedsps.data.clients import ClientData
from fedsps.errors import DataError
from fedsps.model.logistic import network_of
from fedsps.model.models import LogisticRegression
from fedsps.model.network import Loss, Network
from fedsps.theory.bounds import Numbers
from fedsps.theory.constants import Constants
from fedsps.theory.curvature import Linear, of_linear
from fedsps.theory.objective import Objective
from fedsps.theory.optimum import Optimum, minimum

FORM = Linear("logistic regression", 1 / 4, bias=True)


@dataclass(frozen=True, eq=False)
class Overlapping:
    """Two classes, each client with centres of its own; a batch is one sample.

    Attributes:
        data: of the clients, as many samples each.
    """

    data: ClientData

    @cached_property
    def model(self) -> LogisticRegression:
        """Logistic regression at 0, in float64."""
        return LogisticRegression(self.data.inputs.shape[1], 2).double()

    @property
    def loss(self) -> Loss:
        """Of the model's outputs."""
        return F.binary_cross_entropy_with_logits

    @property
    def network(self) -> Network:
        """The problem as the engines see it."""
        return network_of(self.model, self.loss)

    @cached_property
    def _optimum(self) -> Optimum:
        shares = torch.full((self.data.clients,), 1 / self.data.clients, dtype=torch.float64)
        return minimum(Objective(self.network, self.data, shares, 1), FORM)

    @property
    def minimum(self) -> Numbers:
        """The point x*, `[d]`.

        Raises:
            DataError: if the classes do not overlap, and there is none.
        """
        if self._optimum.x is None:
            raise DataError("the classes are separable, and the loss has no minimum: take another seed or more samples")
        return np.asarray(self._optimum.x)

    def value(self, x: Numbers) -> Numbers:
        """`f(x)`, `[...]` of points `[..., d]`."""
        inputs, targets = self.data.inputs, self.data.targets
        logits = torch.from_numpy(x[..., :-1]) @ inputs.T + torch.from_numpy(x[..., -1:])
        losses = F.binary_cross_entropy_with_logits(logits, targets.expand_as(logits), reduction="none")
        return np.asarray(losses.mean(-1))

    def constants(self, scale: float, cap: float, local_steps: int) -> Constants:
        """What the theorems need; l* is 0."""
        return Constants(
            smoothness=of_linear(FORM, self.data, 1).smoothness,
            scale=scale,
            cap=cap,
            local_steps=local_steps,
            clients=self.data.clients,
            gap=self._optimum.value,
            distance=float((self.minimum**2).sum()),
        )


def overlapping(seed: int, clients: int = 4, samples: int = 25, features: int = 2) -> Overlapping:
    """Made-up clients, a function of the seed, whose classes are a standard deviation apart."""
    random = generator(seed, "overlapping")
    made = []
    for _ in range(clients):
        targets = (np.arange(samples) % 2).astype(float)
        centres = random.normal(size=features) + targets[:, None]
        made.append((centres + random.normal(size=(samples, features)), targets))
    return Overlapping(ClientData.of(made))
