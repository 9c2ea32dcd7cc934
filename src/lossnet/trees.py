"""Trees of tensors: what an input may be."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from copy import copy
from typing import Any

from torch import Tensor

__all__ = ["tree_map"]


def tree_map(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return the same tuples, lists, dicts and NamedTuples with ``function`` applied to their tensors.

    None and other leaves stay as they are.

    >>> import torch
    >>> tree_map(lambda tensor: tensor + 1, {"ids": torch.zeros(2), "rest": (torch.ones(1), None, "text")})
    {'ids': tensor([1., 1.]), 'rest': (tensor([2.]), None, 'text')}
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, MutableMapping):  # some that are not dicts, such as a tokenizer's output
        mapped = copy(tree)
        mapped.update({key: tree_map(function, value) for key, value in tree.items()})
        return mapped
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, value) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(tree_map(function, value) for value in tree)
    return tree
