"""Linear layers, the one that reads a network's inputs, and multi-layer perceptrons."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lossnet import ops


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, for inputs ``(batch, …)``."""

    def forward(self, input: Tensor) -> Tensor:
        return ops.dropout(input, self.p, self.training)


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer that starts as SEAL's do: Kaiming uniform weights, zero bias."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class InputLayer(nn.Module):
    """``X W + b`` for inputs ``X`` ``(…, inputs)``; it starts as `linear` does.

    Inputs may be dense, or a matrix ``(batch, inputs)`` in CSR layout, which gets no gradient; those that are
    mostly zeros cost little time in training on a CPU.  The result can be differentiated any number of times.

    ``weight`` is ``(inputs, outputs)``, so that the weights of an input lie together.  A ``state_dict``
    has it as that of `torch.nn.Linear`, ``(outputs, inputs)``.

    >>> import torch
    >>> layer = InputLayer(3, 2)
    >>> layer(torch.zeros(4, 3)).shape, layer.state_dict()["weight"].shape
    (torch.Size([4, 2]), torch.Size([2, 3]))
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        start = linear(inputs, outputs, bias)
        self.weight = nn.Parameter(start.weight.detach().t().contiguous())
        self.bias = start.bias

    def forward(self, x: Tensor) -> Tensor:
        return ops.dense_layer(x, self.weight, self.bias, transposed=True, training=self.training)

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


class MLP(nn.Sequential):
    """``layers`` hidden layers of width ``hidden`` (softplus, dropout), then ``outputs`` if given.

    Without ``outputs`` it is a feature network ``T(x)`` (SEAL §4); with it, a task net ``A(x)``.
    Inputs ``(batch, inputs)``, dense or in CSR layout, give ``(batch, hidden)`` or ``(batch, outputs)``.

    SEAL's authors have no dropout after the last hidden layer (``last_layer_dropout=False``) and no bias in
    the layer of outputs (``output_bias=False``).

    >>> import torch
    >>> MLP(4, hidden=8, layers=2, outputs=3)(torch.zeros(5, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        inputs: int,
        hidden: int,
        layers: int,
        outputs: int | None = None,
        dropout: float = 0,
        last_layer_dropout: bool = True,
        output_bias: bool = True,
    ) -> None:
        modules: list[nn.Module] = []
        width = inputs
        for layer in range(layers):
            modules += [(linear if modules else InputLayer)(width, hidden), nn.Softplus()]
            if dropout and (last_layer_dropout or layer < layers - 1):
                modules.append(Dropout(dropout))
            width = hidden
        if outputs is not None:
            modules.append((linear if modules else InputLayer)(width, outputs, output_bias))
        super().__init__(*modules)
        self.width = width

    def features(self, x: Tensor) -> Tensor:
        """Return what the outputs are read from, ``(batch, self.width)``."""
        for module in list(self)[:-1]:
            x = module(x)
        return x

    @property
    def head(self) -> nn.Module:
        """The last layer, from features to outputs."""
        return self[-1]


class MarkedMLP(nn.Module):
    """An `MLP` that also reads ``marks``, ``(batch, marks)``, which at first change nothing.

    >>> import torch
    >>> MarkedMLP(5, MLP(4, hidden=8, layers=1, outputs=3))(torch.zeros(2, 4), torch.ones(2, 5)).shape
    torch.Size([2, 3])
    """

    def __init__(self, marks: int, mlp: MLP) -> None:
        super().__init__()
        first, *others = mlp
        assert isinstance(first, InputLayer)
        self.first, self.others = first, nn.Sequential(*others)
        self.marks = nn.Linear(marks, first.out_features, bias=False)
        nn.init.zeros_(self.marks.weight)

    def forward(self, x: Tensor, marks: Tensor) -> Tensor:
        outputs: Tensor = self.others(self.first(x) + self.marks(marks))
        return outputs


class Headed(nn.Module):
    """Base class of networks with an encoder and, given ``outputs``, a linear head on its features."""

    def __init__(self, encoder: nn.Module, outputs: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.width: int = encoder.width  # type: ignore[assignment]
        self.head = nn.Identity() if outputs is None else linear(self.width, outputs)

    def features(self, x: Tensor) -> Tensor:
        """Return what the logits are read from, ``(batch, …, self.width)``."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.features(x))
        return outputs


class Marked(nn.Module):
    """An `MLP` that reads ``marks`` numbers beside the features of whole instances that an encoder gives.

    >>> import torch
    >>> encoder = MLP(4, hidden=8, layers=1)
    >>> Marked(5, encoder, hidden=6, outputs=3)(torch.zeros(2, 4), torch.ones(2, 5)).shape
    torch.Size([2, 3])
    """

    def __init__(self, marks: int, encoder: nn.Module, hidden: int, outputs: int, dropout: float = 0) -> None:
        super().__init__()
        self.encoder = encoder
        width: int = encoder.width  # type: ignore[assignment]
        self.head = MarkedMLP(marks, MLP(width, hidden, 1, outputs, dropout))

    def forward(self, x: Any, marks: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.encoder(x), marks)
        return outputs


def hooked(module: nn.Module) -> bool:
    """Whether a module has hooks, which only calling the module itself runs.

    >>> hooked(nn.Softplus())
    False
    """
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in kinds)
