"""Chains of linear layers for all clients at once, in batched products: what `vmap` computes, without its price.

`vmap` takes any module, but around a small layer it costs more than the layer. Modules that are nothing but linear
layers and functions of single numbers, one after another, need no such thing.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from fedsps.core.vectors import Tensors

ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity)


@dataclass(frozen=True)
class Chain:
    """A module as its layers, in turn.

    Attributes:
        layers: each with what its parameters' names begin with.
    """

    layers: tuple[tuple[str, nn.Module], ...]

    def takes(self, inputs: Tensor, axes: int) -> bool:
        """Whether each sample is one row of numbers when the first linear layer sees it; arguments as in a call."""
        first = next((layer for _, layer in self.layers if isinstance(layer, nn.Linear | nn.Flatten)), None)
        return isinstance(first, nn.Flatten) or inputs.ndim == axes + 2

    def __call__(self, parameters: Tensors, inputs: Tensor, axes: int) -> Tensor:
        """The outputs of all clients.

        Args:
            parameters: by name, each `[..., *shape]`; those that are not here are the module's own.
            inputs: `[..., B, *]`; leading axes of the parameters that are missing here come in with the first layer.
            axes: how many leading axes the inputs have.
        """
        for name, layer in self.layers:
            if isinstance(layer, nn.Linear):
                weight = parameters.get(f"{name}weight", layer.weight)
                inputs = inputs @ weight.transpose(-1, -2)
                if layer.bias is not None:
                    inputs = inputs + parameters.get(f"{name}bias", layer.bias).unsqueeze(-2)
                axes = inputs.ndim - 2
            elif isinstance(layer, nn.Flatten):
                inputs = inputs.flatten(axes + 1)
            else:
                inputs = layer(inputs)
        return inputs


def chain_of(module: nn.Module) -> Chain | None:
    """The module as a chain; None if it is no such thing, or if it is watched by hooks.

    >>> chain_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).layers[1]
    ('1.', Linear(in_features=4, out_features=3, bias=True))
    >>> chain_of(nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU())) is None
    True
    """
    layers = _layers("", module)
    return None if layers is None else Chain(tuple(layers))


def _layers(name: str, module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if any(hooks):
        return None
    if type(module) is nn.Sequential:
        # not named_children, which leaves out a layer that comes twice
        parts = [_layers(f"{name}{number}.", part) for number, part in module._modules.items() if part is not None]
        return None if None in parts else [layer for part in parts for layer in part or []]
    whole = type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
    return [(name, module)] if whole or type(module) is nn.Linear or type(module) in ELEMENTWISE else None
