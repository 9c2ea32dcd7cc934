"""Linear layers, and the one that reads what is mostly zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lossnet import kernels
from lossnet.sparse import few_values, product

__all__ = ["InputLayer", "Linear", "hooked", "linear"]


class Linear(nn.Linear):
    """`torch.nn.Linear`, in steps of training on a GPU by `lossnet.kernels`."""

    #: whether ``weight`` is ``(inputs, outputs)``
    upright = False

    def forward(self, input: Tensor) -> Tensor:
        """``x Wᵀ + b``, ``(…, outputs)``."""
        found = kernels.layer(input, self.weight, self.bias, self.upright)
        return super().forward(input) if found is None else found


def linear(inputs: int, outputs: int, bias: bool = True) -> Linear:
    """A linear layer that starts as SEAL's do: Kaiming uniform weights, zero bias."""
    layer = Linear(inputs, outputs, bias=bias)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class InputLayer(nn.Module):
    """``X W + b`` for inputs ``X`` ``(…, inputs)``; it starts as `linear` does.

    In training on a CPU, inputs that are mostly zeros, and sparse CSR inputs ``(batch, inputs)`` anywhere,
    cost as much time as they have other values.  The result can be differentiated any number of times;
    no gradient reaches sparse inputs.

    ``weight`` is ``(inputs, outputs)``, so that the weights of an input lie together.  A ``state_dict``
    has it as that of `torch.nn.Linear`, ``(outputs, inputs)``.

    >>> layer = InputLayer(3, 2)
    >>> x = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    >>> torch.allclose(layer(x.to_sparse_csr()), layer(x))
    True
    """

    upright = True

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        start = linear(inputs, outputs, bias)
        self.weight = nn.Parameter(start.weight.detach().t().contiguous())
        self.bias = start.bias

    def forward(self, x: Tensor) -> Tensor:
        """``X W + b``, ``(…, outputs)``."""
        found = kernels.layer(x, self.weight, self.bias, self.upright)
        if found is not None:
            return found
        if x.layout == torch.sparse_csr or self.training:
            few = few_values(x)
            if few is not None:
                matrix = x if x.dim() == 2 and x.layout == torch.strided else None
                out = product(few, self.weight, matrix)
                out = out if self.bias is None else out + self.bias
                return out.view(*x.shape[:-1], self.out_features)
        if x.dim() == 2 and self.bias is not None and x.device.type == "cpu":
            return torch.addmm(self.bias, x, self.weight)
        return x @ self.weight if self.bias is None else x @ self.weight + self.bias

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = destination[f"{prefix}weight"].t()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        name = f"{prefix}weight"
        if isinstance(state_dict.get(name), Tensor) and state_dict[name].dim() == 2:
            state_dict = {**state_dict, name: state_dict[name].t().contiguous()}
        super()._load_from_state_dict(state_dict, prefix, *rest)


def hooked(*modules: nn.Module) -> bool:
    """Whether somebody wants to be called with any of these modules, so that all must be called as they are.

    >>> hooked(nn.Softplus())
    False
    """
    return any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in modules
    )
