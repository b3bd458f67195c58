"""Logistic regression's loss and gradient in closed form: the paper's convex model, without autograd.

It computes what `Network` computes, in two matrix products for all clients at once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsps.core.vectors import Tensors
from fedsps.model.models import LogisticRegression
from fedsps.model.network import Loss, Network, is_masked, plain_mean


class Logistic(Network):
    """`LogisticRegression` under its own loss (a test holds it against autograd).

    z = W u + b,   p = softmax(z) or sigmoid(z),   dF/dz = (p - y) / B,   dF/dW = (dF/dz) u^T,   dF/db = sum dF/dz
    """

    def loss_and_gradient(
        self,
        x: Tensor,
        buffers: Tensors,
        inputs: Tensor,
        targets: Tensor,
        shared: int = 0,
        masked: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensors]:
        """As `Network.loss_and_gradient`, by two matrix products; masked or probability targets go the general way."""
        masked = is_masked(targets) if masked is None else masked
        if self._sizes[1] > 1 and (targets.is_floating_point() or masked):
            return super().loss_and_gradient(x, buffers, inputs, targets, shared, masked)
        features = inputs.flatten(x.ndim - shared)  # [..., B, p]
        weight, bias = x[..., : -self.width], x[..., -self.width :]  # `split` takes 10 times longer
        weight = weight.view(*x.shape[:-1], *self._shapes[0])
        logits = weight @ features.transpose(-1, -2) + bias.unsqueeze(-1)  # [..., K, B], faster than [..., B, K]
        losses, slope = losses_and_slope(logits, targets.expand(*x.shape[:-1], -1))
        gradient = torch.cat([(slope @ features).flatten(-2), slope.sum(-1)], dim=-1)
        return losses, gradient, buffers

    @property
    def width(self) -> int:
        """The number of outputs: of classes, or 1 for a single logit."""
        return self._sizes[1]

    def counts_classes(self, targets: Tensor, masked: bool) -> bool:
        """Whether the closed form covers these targets `[M]`: class numbers, none of which says to ignore a sample.

        Args:
            targets: of all samples.
            masked: whether one of them does not count.
        """
        if targets.ndim != 1 or (self.width > 1 and targets.is_floating_point()):
            return False
        return self.width == 1 or not masked

    def sample_bytes(self, inputs: Tensor, targets: Tensor) -> int:
        """The logits of a sample and a few tensors of their shape; an estimate, since autograd keeps nothing here."""
        return 8 * self._sizes[1] * self.x.element_size()


def losses_and_slope(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of each batch, `[...]`, and the slope `dF/dz`, `[..., K, B]`, both of logits `z [..., K, B]`.

    One output is a sigmoid's logit for targets 0 and 1, several are a softmax's for class numbers `[..., B]`.
    """
    truth = targets.unsqueeze(-2)  # [..., 1, B]
    if logits.shape[-2] == 1:
        truth = truth.to(logits.dtype)
        losses = F.binary_cross_entropy_with_logits(logits, truth.expand_as(logits), reduction="none").squeeze(-2)
        slope = logits.sigmoid() - truth
    else:
        truth = truth.expand(*logits.shape[:-2], 1, -1)
        log_p = logits.log_softmax(-2)
        losses = -log_p.gather(-2, truth).squeeze(-2)
        slope = log_p.exp().scatter_add_(-2, truth, torch.full_like(truth, -1, dtype=logits.dtype))
    return losses.mean(-1), slope.div_(targets.shape[-1])


def network_of(module: nn.Module, loss: Loss = F.cross_entropy) -> Network:
    """The fastest `Network` for a module and a loss: closed forms where there are any, autograd for the rest.

    The closed form is taken for `LogisticRegression` itself (no subclass, no frozen parameter) under the plain mean of
    its own loss: the cross-entropy, or the binary one for two classes.

    >>> type(network_of(LogisticRegression(4, 3))).__name__, type(network_of(nn.Linear(4, 3))).__name__
    ('Logistic', 'Network')
    """
    if type(module) is LogisticRegression and all(parameter.requires_grad for parameter in module.parameters()):
        matching_loss = F.binary_cross_entropy_with_logits if len(module.bias) == 1 else F.cross_entropy
        if plain_mean(loss) is matching_loss:
            return Logistic(module, loss)
    return Network(module, loss)
