"""Linear layers, and the one that reads what is mostly zeros.

A product ``X W`` with a sparse ``X`` reads the weights of the inputs that are not zero and no others, and its
gradient ``Xᵀ D`` is as cheap.  Both are sums of few rows of a matrix, which PyTorch has as
`torch.nn.functional.embedding_bag`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["InputLayer", "linear"]

#: up to this share of inputs that are not zero, sums of rows are faster than a dense product
SPARSE_SHARE = 0.1


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer that starts as SEAL's do: Kaiming uniform weights, zero bias."""
    layer = nn.Linear(inputs, outputs, bias=bias)
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

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        start = linear(inputs, outputs, bias)
        self.weight = nn.Parameter(start.weight.detach().t().contiguous())
        self.bias = start.bias

    def forward(self, x: Tensor) -> Tensor:
        """``X W + b``, ``(…, outputs)``."""
        if x.layout == torch.sparse_csr or self.training:
            few = _few_values(x)
            if few is not None:
                matrix = x if x.dim() == 2 and x.layout == torch.strided else None
                product = _product(few, self.weight, matrix)
                product = product if self.bias is None else product + self.bias
                return product.view(*x.shape[:-1], self.out_features)
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


class SparseProduct(torch.autograd.Function):
    """``X W`` ``(rows, outputs)`` for a constant sparse ``X`` and ``W`` ``(inputs, outputs)``.

    ``dense`` is ``X`` as a tensor, where there is one, for those who read the graph.
    """

    @staticmethod
    def forward(ctx: Any, x: _Sparse, weight: Tensor, dense: Tensor | None) -> Tensor:
        ctx.x, ctx.constant_input = x, dense
        return x.rows.of(weight.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        return None, _TransposedProduct.apply(ctx.x, gradient), None  # type: ignore[no-untyped-call]


class _TransposedProduct(torch.autograd.Function):
    """``Xᵀ D`` ``(inputs, outputs)`` for ``D`` ``(rows, outputs)``: the adjoint of `SparseProduct`."""

    @staticmethod
    def forward(ctx: Any, x: _Sparse, gradient: Tensor) -> Tensor:
        ctx.x = x
        return x.columns.of(gradient.detach())

    @staticmethod
    def backward(ctx: Any, direction: Tensor) -> tuple[None, Tensor]:
        return None, _product(ctx.x, direction, None)


def _product(x: _Sparse, weight: Tensor, dense: Tensor | None) -> Tensor:
    return cast("Tensor", SparseProduct.apply(x, weight, dense))  # type: ignore[no-untyped-call]


class _Sums(NamedTuple):
    """Which rows of a matrix are summed: those at ``indices[starts[i]:starts[i + 1]]``, times ``values``."""

    indices: Tensor
    starts: Tensor
    values: Tensor | None

    def of(self, matrix: Tensor) -> Tensor:
        """The sums, ``(sums, width)``, of rows of ``(rows, width)``."""
        values = None if self.values is None else self.values.to(matrix.dtype)
        mode, last = 0, True  # sums; the last start is where all end
        matrix = matrix.contiguous()
        return torch.embedding_bag(matrix, self.indices, self.starts, False, mode, False, values, last)[0]


@dataclass(frozen=True, eq=False)
class _Sparse:
    """A constant matrix ``(m, n)``: where it is not zero, row after row; the values, if some are not 1."""

    row: NDArray[np.int64]
    column: NDArray[np.int64]
    value: NDArray[Any] | None
    shape: tuple[int, int]

    @cached_property
    def rows(self) -> _Sums:
        """``X R`` as sums of rows of ``R``."""
        return self._sums(self.row, self.column, self.value, self.shape[0])

    @cached_property
    def columns(self) -> _Sums:
        """``Xᵀ D`` as sums of rows of ``D``."""
        # NumPy sorts small numbers several times faster.
        keys = self.column.astype(np.uint16) if self.shape[1] <= 1 << 16 else self.column
        order = np.argsort(keys, kind="stable")
        value = None if self.value is None else self.value[order]
        return self._sums(self.column, self.row[order], value, self.shape[1])

    @staticmethod
    def _sums(
        sums: NDArray[np.int64], indices: NDArray[np.int64], values: NDArray[Any] | None, count: int
    ) -> _Sums:
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(sums, minlength=count), out=starts[1:])
        weights = None if values is None else torch.from_numpy(values)
        return _Sums(torch.from_numpy(indices), torch.from_numpy(starts), weights)


def _few_values(x: Tensor) -> _Sparse | None:
    """What is not zero in constant inputs on a CPU ``(…, inputs)``, as a matrix, if that is little."""
    if x.requires_grad or x.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    if torch._C._functorch.maybe_current_level() is not None:  # one tensor stands for many inside vmap
        return None
    # Kept with the tensor, since all steps on a batch read the same one.
    version, known = getattr(x, "_few_values", (None, None))
    if version != x._version:
        known = _scan(x)
        x._few_values = (x._version, known)  # type: ignore[attr-defined]
    return cast("_Sparse | None", known)


def _scan(x: Tensor) -> _Sparse | None:
    shape = (x.shape[:-1].numel(), x.shape[-1])
    if x.layout == torch.sparse_csr:
        counts = np.diff(x.crow_indices().numpy())
        row = np.repeat(np.arange(shape[0]), counts)
        column, value = x.col_indices().numpy().astype(np.int64), x.values().numpy()
        return _Sparse(row, column, None if (value == 1).all() else value, shape)
    flat = x.detach().reshape(-1).numpy()
    places = flat != 0
    if np.count_nonzero(places) > SPARSE_SHARE * flat.size:
        return None
    where = np.flatnonzero(places)
    row = where // max(shape[1], 1)
    value = flat[where]
    return _Sparse(row, where - row * shape[1], None if (value == 1).all() else value, shape)
