"""Differential privacy of a client's whole data: its message is clipped, the mean gets noise, epsilon says the rest.

    client:  v_i = delta_i min(1, C / ||delta_i||)
    server:  mean = (1/n) sum_i v_i + (z C / n) N(0, I)

C is the clipping norm, z the noise multiplier, n the clients that answered. The server is trusted: it sees each v_i,
and draws the noise.

Scalars that some algorithms send beside the change are clipped to ranges `m +- r` and get noise `(z_j r / n) N(0, 1)`.
If one client is replaced, the sums move by at most `2 C` and `2 r`; in units of their noise these are `2 / z_0` for the
change and `2 / z_j` for each scalar. All of them together are one Gaussian mechanism, which moves by the root of the
sum of squares. So epsilon is that of z and the change alone if

    1 / z_0^2 + sum_j 1 / z_j^2 = 1 / z^2

The K scalars share a tenth of this budget alike, the change has the rest, and 5 % more noise than without them:

    z_0 = z / sqrt(0.9),    z_j = z sqrt(K / 0.1)

References:
    McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018.
    Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping, NeurIPS 2021
    (theorem 1: a vector and a number with noise of their own, as one mechanism).
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsps.checks import count, positive
from fedsps.core.contract import Ranges
from fedsps.core.vectors import Tensors, mean
from fedsps.errors import ConfigurationError
from fedsps.rules.aggregation import Mean, clip, clipped

SCALARS = 0.1
"""The part of `1 / z^2` that all scalars share, where an algorithm sends any."""


@dataclass(frozen=True)
class Privacy:
    """Gaussian noise on the mean of clipped changes, `std = noise_multiplier * clip_norm / clients that answered`.

    Two federations are neighbours if one client's whole data is replaced (their number is public). Replacing it changes
    the sum of the clipped changes by at most `2 clip_norm`. Scalars beside the change are part of the same bound, see
    the head of this file.

    Args:
        clip_norm: the largest norm of a client's change (C).
        noise_multiplier: the std of the noise on the sum, in clipping norms (z).
        delta: epsilon is told for this delta; choose it far below 1 / clients.
        ranges: of the scalars that clients send beside the change; others they do not send.

    >>> private = Privacy(clip_norm=1.0, noise_multiplier=3.0, ranges={"loss": (0.0, 2.0)})
    >>> private.clip({"delta": torch.tensor([3.0, 4.0]), "loss": torch.tensor(2.5), "other": torch.tensor(1.0)})
    {'delta': tensor([0.6000, 0.8000]), 'loss': tensor(2.)}
    >>> [round(multiplier, 3) for multiplier in private.multipliers]
    [3.162, 9.487]
    """

    clip_norm: float
    noise_multiplier: float
    delta: float = 1e-5
    ranges: Ranges = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("clip_norm", "noise_multiplier"):
            positive(name, getattr(self, name))
        if not 0 < self.delta < 1:
            raise ConfigurationError(f"delta must be above 0 and below 1; got {self.delta!r}")

    @property
    def multipliers(self) -> tuple[float, float]:
        """The noise multipliers of the change and of each scalar, z_0 and z_j; without scalars z_0 is z."""
        if not self.ranges:
            return self.noise_multiplier, math.inf
        scalar = self.noise_multiplier * math.sqrt(len(self.ranges) / SCALARS)
        return self.noise_multiplier / math.sqrt(1 - SCALARS), scalar

    def clip(self, message: Tensors) -> Tensors:
        """What a client sends: its change, and the scalars that have a range.

        If a value is not finite, all are sent as 0: that they are missing would tell of the data.
        """
        sent = {name: message[name] for name in ("delta", *self.ranges)}
        if not all(value.isfinite().all() for value in sent.values()):
            sent = {name: torch.zeros_like(value) for name, value in sent.items()}
        scalars = {name: sent[name].clamp(*bounds) for name, bounds in self.ranges.items()}
        return {"delta": clip(sent["delta"], self.clip_norm)} | scalars

    def mean(self, name: str) -> Mean:
        """The noisy mean of the clients' values of this name; equal weights. Clipped again: the bound is kept here.

        A client that does not clip, out of error or malice, cannot weaken the others' privacy so. Sum and noise are in
        float64; the result has the dtype of the values.
        """
        return self._change if name == "delta" else partial(self._scalar, self.ranges[name])

    def _change(self, values: Tensor, weights: Tensor) -> Tensor:
        """`[clients, d], [clients] -> [d]`."""
        std = self.multipliers[0] * self.clip_norm / len(values)
        noise = torch.from_numpy(gaussian(values.shape[-1])).to(values.device)
        return (clipped(values.double(), weights, self.clip_norm) + std * noise).to(values.dtype)

    def _scalar(self, bounds: tuple[float, float], values: Tensor, weights: Tensor) -> Tensor:
        """`[clients], [clients] -> []`. Noise may lead out of the range, where no mean can be: it is brought back."""
        low, high = bounds
        std = self.multipliers[1] * (high - low) / 2 / len(values)
        noisy = mean(values.double().clamp(low, high), weights) + std * float(gaussian(1)[0])
        return noisy.clamp(low, high).to(values.dtype)

    def claim(self, counted: Sequence[int], rounds: int, cohort: int) -> dict[str, Any]:
        """What can be said of a run in which the clients took part in so many of the rounds each.

        Args:
            counted: the rounds of each client, `[clients]`.
            rounds: that the run took.
            cohort: clients a round, as planned.

        Returns:
            `epsilon`, `delta` and `rounds_of_a_client`; for drawn cohorts of which every client answered also
            `epsilon_secret_cohorts`, which holds as long as nobody knows the seed.
        """
        clients, most = len(counted), max(counted)
        claim: dict[str, Any] = {
            "epsilon": epsilon(most, clients, clients, self.noise_multiplier, self.delta),
            "delta": self.delta,
            "rounds_of_a_client": most,
        }
        if cohort < clients and sum(counted) == rounds * cohort:  # who is missing tells something of who was drawn
            claim["epsilon_secret_cohorts"] = epsilon(rounds, cohort, clients, self.noise_multiplier, self.delta)
        return claim


def explain(claim: dict[str, Any]) -> str:
    """A claim with its assumptions, in words that can stand in a log."""
    words = (
        f"differential privacy: epsilon {claim['epsilon']:.4g} at delta {claim['delta']:g} for all data of one client, "
        f"against its replacement by any other, over at most {claim['rounds_of_a_client']} rounds with this client. "
        "It holds against all who see the models, also if they know the seed and so the cohorts; the server is "
        "trusted. Every further run on the same data adds to it."
    )
    if "epsilon_secret_cohorts" in claim:
        words += f" If nobody knew the seed: epsilon {claim['epsilon_secret_cohorts']:.4g}."
    return words


def epsilon(rounds: int, cohort: int, clients: int, noise_multiplier: float, delta: float) -> float:
    """The epsilon of so many rounds, each over `cohort` of the `clients`, drawn anew and known to nobody.

    By the Rényi accountant of the library dp-accounting, under replacement of one client: the noise of the sum is
    `noise_multiplier` clipping norms, its sensitivity two. For cohorts that are known, give the rounds that one client
    takes part in, and `cohort = clients`: sampling then hides nothing.

    Args:
        rounds: how many; 0 has cost nothing.
        cohort: clients a round.
        clients: in all.
        noise_multiplier: see `Privacy`; more noise, smaller epsilon.
        delta: see `Privacy`.

    Raises:
        ConfigurationError: a number that cannot be, or dp-accounting is not installed.

    References:
        Mironov: Rényi Differential Privacy, CSF 2017.
        Wang, Balle, Kasiviswanathan: Subsampled Rényi Differential Privacy and Analytical Moments Accountant,
        AISTATS 2019.

    >>> epsilon(rounds=0, cohort=10, clients=10, noise_multiplier=1.0, delta=1e-5)
    0.0
    """
    for name, value in (("rounds", rounds), ("cohort", cohort), ("clients", clients)):
        count(name, value, least=0 if name == "rounds" else 1)
    if cohort > clients:
        raise ConfigurationError(f"cohort is {cohort}, but there are only {clients} clients")
    Privacy(1.0, noise_multiplier, delta)  # the same checks
    if rounds == 0:
        return 0.0
    try:
        import dp_accounting as dp
        from dp_accounting.rdp import RdpAccountant
    except ImportError as error:
        raise ConfigurationError("epsilon needs dp-accounting: pip install 'fedsps[flower]'") from error
    noise = dp.GaussianDpEvent(noise_multiplier / 2)
    events = [noise, dp.SampledWithoutReplacementDpEvent(clients, cohort, noise)]
    accountants = [RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE) for _ in events]
    # both bounds hold, and for little noise that of the sampled rounds may be the larger one
    return min(
        float(accountant.compose(event, rounds).get_epsilon(delta))
        for accountant, event in zip(accountants, events, strict=True)
    )


def composed(answers: Mapping[float, int], delta: float) -> float:
    """The epsilon of a client's answers in any runs, so many under each noise multiplier; no sampling is counted on.

    >>> bool(composed({2.0: 3, 4.0: 1}, delta=1e-5) > composed({2.0: 3}, delta=1e-5))
    True
    """
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    for noise_multiplier, times in answers.items():
        accountant.compose(dp.GaussianDpEvent(noise_multiplier / 2), times)
    return float(accountant.get_epsilon(delta))


def gaussian(size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Standard normal numbers out of the operating system's random bytes (Box-Muller): no seed brings them back.

    Whoever could draw the noise again could take it off the mean.
    """
    half = (size + 1) // 2
    bits = np.frombuffer(secrets.token_bytes(16 * half), dtype=np.uint64).reshape(2, half) >> np.uint64(11)
    radius = np.sqrt(-2 * np.log((bits[0] + 1.0) / 2**53))  # of a uniform number in (0, 1]
    angle = 2 * np.pi * (bits[1] / 2**53)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
