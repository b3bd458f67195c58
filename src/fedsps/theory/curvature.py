"""How curved the losses are: L and mu, exactly for linear models, estimated at a point for all others.

The theorems' L and mu are those of every `F_i(., batch)`. For a linear model, with u a sample's features (and a 1 if
there is a bias), the Hessian of a batch is

    least squares          2/K mean u u^T                       at every point, K outputs
    logistic regression    at most 1/4 mean u u^T               reached at x = 0
    softmax regression     at most 1/2 mean u u^T               approached where two classes share all probability

so L is known without an estimate: exactly for batches of one sample or of a client's whole data, and from above, by
the B longest samples, for those in between.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsps.core import streams
from fedsps.data.clients import ClientData
from fedsps.model.chain import chain_of
from fedsps.model.models import LogisticRegression
from fedsps.model.network import Loss, Network, plain_mean, trainable

Kind = Literal["logistic regression", "softmax regression", "least squares"]
Precision = Literal["exact", "upper bound", "lower bound", "estimate"]
"""How well a number is known; an estimate is that of one point and a few batches."""

Product = Callable[[Tensor], Tensor]
ITERATIONS, TOLERANCE = 100, 1e-4  # of the power iteration
TRIED = 3  # clients


@dataclass(frozen=True)
class Linear:
    """A linear model under a convex loss.

    Attributes:
        kind: which one.
        factor: the Hessian is at most, for least squares exactly, this times `mean u u^T`.
        bias: whether features end with a 1.
    """

    kind: Kind
    factor: float
    bias: bool

    def features(self, inputs: Tensor) -> Tensor:
        """The u of each sample, `[M, p]` in float64."""
        flat = inputs.flatten(1).double()
        return torch.cat([flat, torch.ones_like(flat[:, :1])], 1) if self.bias else flat


def linear_form(module: nn.Module, loss: Loss) -> Linear | None:
    """The module and the loss as a linear model; None if they are none that is known here.

    >>> linear_form(nn.Linear(4, 3), F.cross_entropy)
    Linear(kind='softmax regression', factor=0.5, bias=True)
    >>> linear_form(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), F.cross_entropy) is None
    True
    """
    if not all(parameter.requires_grad for parameter in module.parameters()):
        return None
    if type(module) is LogisticRegression:
        outputs, bias = len(module.bias), True
    else:
        chain = chain_of(module)
        layers = [] if chain is None else [layer for _, layer in chain.layers]
        found = [layer for layer in layers if isinstance(layer, nn.Linear)]
        if len(found) != 1 or not all(isinstance(layer, nn.Linear | nn.Flatten | nn.Identity) for layer in layers):
            return None
        outputs, bias = found[0].out_features, found[0].bias is not None
    if plain_mean(loss) is F.cross_entropy and outputs > 1:
        return Linear("softmax regression", 1 / 2, bias)
    if plain_mean(loss) is F.binary_cross_entropy_with_logits and outputs == 1:
        return Linear("logistic regression", 1 / 4, bias)
    if loss is F.mse_loss or (type(loss) is nn.MSELoss and loss.reduction == "mean"):
        return Linear("least squares", 2 / outputs, bias)
    return None


@dataclass(frozen=True)
class Curvature:
    """L and mu of every `F_i(., batch)`, and how well they are known.

    Attributes:
        smoothness: L.
        convexity: mu; below 0 only as an estimate, where a loss is not convex.
        smoothness_is: exact, an upper bound, or an estimate.
        convexity_is: exact, a lower bound, or an estimate.
        of: what they are true of; an estimate has seen less than the theorems need.
    """

    smoothness: float
    convexity: float
    smoothness_is: Precision
    convexity_is: Precision
    of: str = field(default="every F_i(., batch)", repr=False)


def of_linear(model: Linear, data: ClientData, batch: int | None) -> Curvature:
    """L and mu of a linear model for batches of so many samples, None for a client's whole data.

    >>> data = ClientData.of([(torch.tensor([[3.0], [1.0]]), torch.zeros(2))])
    >>> of_linear(Linear("least squares", 2.0, bias=False), data, batch=1)
    Curvature(smoothness=18.0, convexity=2.0, smoothness_is='exact', convexity_is='exact')
    """
    largest, least = 0.0, np.inf
    exact = True
    for inputs, _ in data.pairs():
        features = model.features(inputs)
        if len(features) == 0:
            continue
        size = min(batch or len(features), len(features))
        lengths = features.square().sum(1)
        if size == len(features):
            values = _spectrum(features)
            low, high = values.min().item(), values.max().item()
        else:
            exact &= size == 1
            low = lengths.min().item() if features.shape[1] == size == 1 else 0.0
            high = lengths.topk(size).values.mean().item()
        largest, least = max(largest, high), min(least, low)
    if model.kind != "least squares":
        return Curvature(model.factor * largest, 0.0, "exact" if exact else "upper bound", "exact")
    small = batch is not None and batch < model.features(data.inputs[:1]).shape[1]  # a batch does not span all features
    return Curvature(
        model.factor * largest,
        model.factor * least,
        "exact" if exact else "upper bound",
        "exact" if exact or small else "lower bound",
    )


def _spectrum(features: Tensor) -> Tensor:
    """The eigenvalues of `mean u u^T`, of which rounding makes none negative."""
    samples, width = features.shape
    if samples < width:
        others = torch.linalg.eigvalsh(features @ features.T / samples)
        return torch.cat([others.clamp(min=0), others.new_zeros(width - samples)])
    found: Tensor = torch.linalg.eigvalsh(features.T @ features / samples).clamp(min=0)
    return found


def estimated(network: Network, data: ClientData, batch: int | None, seed: int = 0) -> Curvature:
    """The largest and the smallest eigenvalue of the Hessians of three clients' batches at the network's x.

    By power iteration, with products of the Hessian and a vector from autograd. L is at least what is found, since
    other points and batches may be more curved.

    Args:
        network: in float64.
        data: the clients' samples.
        batch: samples of a batch; None for a client's whole data.
        seed: decides the first vectors.
    """
    extremes = []
    for client, (inputs, targets) in enumerate(data.pairs()[:TRIED]):
        size = min(batch or len(inputs), len(inputs))
        first = torch.from_numpy(streams.generator(seed, "power", client).normal(size=network.x.numel()))
        extremes.append(_extremes(_product(network, inputs[:size], targets[:size]), first.to(network.x)))
    low, high = min(pair[0] for pair in extremes), max(max(map(abs, pair)) for pair in extremes)
    seen = "one batch of the only client" if len(extremes) == 1 else f"one batch each of {len(extremes)} clients"
    return Curvature(high, low, "estimate", "estimate", f"{seen}, at the start")


def _product(network: Network, inputs: Tensor, targets: Tensor) -> Product:
    """From a vector to the Hessian of a batch's loss times that vector, at the network's x."""
    module = network.module(network.x, network.buffers)
    parameters = list(trainable(module).values())
    loss = network.loss(module(inputs), targets)
    pieces = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
    gradient = torch.cat([piece.flatten() for piece in pieces])

    def product(vector: Tensor) -> Tensor:
        along = torch.autograd.grad(gradient, parameters, vector, retain_graph=True, materialize_grads=True)
        return torch.cat([piece.flatten() for piece in along])

    return product


def _extremes(product: Product, first: Tensor) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of a symmetric matrix.

    The power iteration finds the one that is larger in absolute value; shifted by that, it finds the one at the other
    end.
    """
    one = _dominant(product, first)
    other = one + _dominant(lambda vector: product(vector) - one * vector, first)
    return min(one, other), max(one, other)


def _dominant(product: Product, vector: Tensor) -> float:
    """The eigenvalue of largest absolute value, by power iteration; 0 of a matrix of zeros."""
    value = 0.0
    for _ in range(ITERATIONS):
        vector = vector / vector.norm()
        image = product(vector)
        before, value = value, float(vector @ image)
        if image.norm() == 0 or abs(value - before) <= TOLERANCE * abs(value):
            break
        vector = image
    return value
