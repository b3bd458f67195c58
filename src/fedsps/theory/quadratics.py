"""Problems whose constants are known exactly: separable quadratics, with bumps if they are not to be convex.

A sample of client i is a curvature h, a centre b and an offset o:

    F_i(x, (h, b, o)) = 1/2 sum_j h_j (x_j - b_j)^2 + o + bumps sum_j (1 - cos x_j)

They are trained like any other model: a module, a loss and the clients' data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedsps.core.streams import generator
from fedsps.core.vectors import Tensors
from fedsps.data.clients import ClientData
from fedsps.model.network import Loss, Network
from fedsps.theory.bounds import Numbers
from fedsps.theory.constants import Constants


class Bowl(nn.Module):
    """The point x, and the losses of samples `[B, 2, d]` (curvatures and centres) there, without their offsets.

    Args:
        start: x_0, `[d]`.
        bumps: how much of `1 - cos` is added in each coordinate.
    """

    def __init__(self, start: Tensor, bumps: float = 0.0) -> None:
        super().__init__()
        self.x = nn.Parameter(start.clone())
        self.bumps = bumps

    def forward(self, inputs: Tensor) -> Tensor:
        """The loss of each sample at x, `[B]`, without its offset."""
        curvatures, centres = inputs[:, 0], inputs[:, 1]
        bowl = (curvatures * (self.x - centres) ** 2).sum(-1) / 2
        return bowl + self.bumps * (1 - self.x.cos()).sum()


def mean_with_offsets(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of a batch: the samples' losses and their offsets, which are the targets."""
    return (outputs + targets).mean()


class ClosedForm(Network):
    """`Bowl` under `mean_with_offsets` without autograd (a test holds it against that), which takes half the time.

    Args:
        bowl: the module.
    """

    def __init__(self, bowl: Bowl) -> None:
        super().__init__(bowl, mean_with_offsets)
        self._bumps = bowl.bumps

    def loss_and_gradient(
        self,
        x: Tensor,
        buffers: Tensors,
        inputs: Tensor,
        targets: Tensor,
        shared: int = 0,
        masked: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensors]:
        """As `Network.loss_and_gradient`: `mean 1/2 sum_j h_j (x_j - b_j)^2 + o`, and the bumps."""
        curvatures, centres = inputs[..., 0, :], inputs[..., 1, :]  # [..., B, d]
        away = x.unsqueeze(-2) - centres
        bowls = (curvatures * away**2).sum(-1) / 2 + targets
        bumps = self._bumps * (1 - x.cos()).sum(-1)
        return bowls.mean(-1) + bumps, (curvatures * away).mean(-2) + self._bumps * x.sin(), buffers


@dataclass(frozen=True, eq=False)
class Quadratics:
    """Clients with as many samples each, in float64; a batch is one sample, as in the paper's notation.

    Attributes:
        curvatures: h, `[clients, samples, d]`.
        centres: b, `[clients, samples, d]`.
        offsets: o, at least 0, `[clients, samples]`; the algorithms' lower bound is 0 all the same.
        start: x_0, `[d]`.
        bumps: see above.

    >>> ones = np.ones((2, 1, 1))
    >>> problem = Quadratics(ones, np.array([[[1.0]], [[3.0]]]), np.zeros((2, 1)), np.zeros(1))
    >>> problem.minimum, problem.value(problem.minimum).item(), problem.gap
    (array([2.]), 0.5, 0.5)
    """

    curvatures: Numbers
    centres: Numbers
    offsets: Numbers
    start: Numbers
    bumps: float = 0.0

    @cached_property
    def minimum(self) -> Numbers:
        """x*, by closed form for a quadratic; with bumps the best point of a fine grid, coordinate by coordinate."""
        curvature, slope = self.curvatures.mean((0, 1)), (self.curvatures * self.centres).mean((0, 1))
        if not self.bumps:
            return np.asarray(slope / curvature)
        grid = np.linspace(self.centres.min() - 10, self.centres.max() + 10, 400_001)[:, None]
        values = curvature * grid**2 / 2 - slope * grid + self.bumps * (1 - np.cos(grid))
        return np.asarray(grid[values.argmin(0), 0])

    def value(self, x: Numbers) -> Numbers:
        """`f(x)`, `[...]` of points `[..., d]`."""
        h, hb = self.curvatures.mean((0, 1)), (self.curvatures * self.centres).mean((0, 1))
        constant = (self.curvatures * self.centres**2).mean((0, 1)).sum() / 2 + self.offsets.mean()
        bowl = ((h * x / 2 - hb) * x).sum(-1) + constant
        return np.asarray(bowl + self.bumps * (1 - np.cos(x)).sum(-1))

    def gradients(self, x: Numbers) -> Numbers:
        """The gradient of each sample, `[clients, samples, d]`, at `x [d]`."""
        found: Numbers = self.curvatures * (x - self.centres) + self.bumps * np.sin(x)
        return found

    def gradient(self, x: Numbers) -> Numbers:
        """`grad f(x)`, `[..., d]` of points `[..., d]`."""
        h, hb = self.curvatures.mean((0, 1)), (self.curvatures * self.centres).mean((0, 1))
        found: Numbers = h * x - hb + self.bumps * np.sin(x)
        return found

    @property
    def gap(self) -> float:
        """`sigma_f^2 = f* - l*`, with l* = 0."""
        return float(self.value(self.minimum))

    def constants(self, scale: float, cap: float, local_steps: int) -> Constants:
        """What the theorems need.

        Variance and heterogeneity are those at x*; they are the same everywhere if all curvatures are equal.
        """
        at_minimum = self.gradients(self.minimum)
        means = at_minimum.mean(1)
        return Constants(
            smoothness=float(self.curvatures.max()) + self.bumps,
            convexity=max(0.0, float(self.curvatures.min()) - self.bumps),
            scale=scale,
            cap=cap,
            local_steps=local_steps,
            clients=len(self.curvatures),
            gap=self.gap,
            distance=float(((self.start - self.minimum) ** 2).sum()),
            excess=float(self.value(self.start)) - self.gap,
            variance=float(((at_minimum - means[:, None]) ** 2).sum(-1).mean(1).max()),
            heterogeneity=float(((means - means.mean(0)) ** 2).sum(-1).mean()),
        )

    @property
    def model(self) -> Bowl:
        """The module, at the start."""
        return Bowl(torch.from_numpy(self.start), self.bumps)

    @property
    def loss(self) -> Loss:
        """Of the module's outputs."""
        return mean_with_offsets

    @property
    def network(self) -> Network:
        """The problem as the engines see it."""
        return ClosedForm(self.model)

    @property
    def data(self) -> ClientData:
        """The samples as the engines see them."""
        samples = np.stack([self.curvatures, self.centres], 2)  # [clients, samples, 2, d]
        return ClientData.of(
            [(torch.from_numpy(mine), torch.from_numpy(o)) for mine, o in zip(samples, self.offsets, strict=True)]
        )


def random_quadratics(
    seed: int,
    *,
    clients: int = 4,
    samples: int = 5,
    dimension: int = 3,
    curvatures: Sequence[float] = (0.5, 4.0),
    spread: float = 1.0,
    noise: float = 0.5,
    offset: float = 0.0,
    same_curvatures: bool = False,
    bumps: float = 0.0,
) -> Quadratics:
    """Made-up quadratics, a function of the seed; the least and the largest curvature both occur.

    Args:
        seed: decides everything that is random.
        clients: how many.
        samples: of each.
        dimension: d.
        curvatures: from, to; drawn evenly by their logarithm.
        spread: standard deviation of the clients' centres; 0 with no noise is interpolation.
        noise: standard deviation of the samples' centres around their client's.
        offset: of every sample: how far l* = 0 is below the least loss.
        same_curvatures: of all samples, so that gradients differ by the same at every point.
        bumps: see `Quadratics`.
    """
    random = generator(seed, "quadratics")
    low, high = np.log(curvatures)
    shape = (clients, samples, dimension)
    drawn = np.exp(random.uniform(low, high, (1, 1, dimension) if same_curvatures else shape))
    drawn.flat[0], drawn.flat[-1] = np.exp(high), np.exp(low)
    centres = spread * random.normal(size=(clients, 1, dimension)) + noise * random.normal(size=shape)
    start = random.normal(size=dimension) * 3 + 3
    return Quadratics(np.broadcast_to(drawn, shape).copy(), centres, np.full((clients, samples), offset), start, bumps)
