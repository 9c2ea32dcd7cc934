"""Trees of tensors, as inputs may be: tensors in tuples, lists, mappings and named tuples, nested at will."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from typing import Any, TypeAlias

from torch import Tensor

__all__ = ["Tree", "first_leaf", "tree_leaves", "tree_map"]

#: a tensor, or a tuple, list, mapping or named tuple of trees
Tree: TypeAlias = Any


def tree_map(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """Return a tree of the same form with a function applied to each tensor; other leaves stay.

    >>> import torch
    >>> tree_map(len, {"a": torch.zeros(2), "b": (torch.zeros(3), None)})
    {'a': 2, 'b': (3, None)}
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, MutableMapping):  # some that are not dicts, such as a tokenizer's output
        mapped = copy(tree)
        for key, value in tree.items():  # `update` would add to what a Counter has
            mapped[key] = tree_map(function, value)
        return mapped
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, value) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(tree_map(function, value) for value in tree)
    return tree


def tree_leaves(tree: Tree) -> Iterator[Tensor]:
    """Yield the tensors of a tree.

    >>> import torch
    >>> [len(leaf) for leaf in tree_leaves({"a": torch.zeros(2), "b": [torch.zeros(3), None]})]
    [2, 3]
    """
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tree_leaves(value)
    elif isinstance(tree, (tuple, list)):
        for value in tree:
            yield from tree_leaves(value)


def first_leaf(tree: Tree) -> Tensor:
    """Return a tree's first tensor, which says how many instances there are, and where they are.

    >>> import torch
    >>> first_leaf({"ids": torch.zeros(2, 3), "lengths": torch.ones(2)}).shape
    torch.Size([2, 3])
    """
    leaf = next(tree_leaves(tree), None)
    if leaf is None:
        raise TypeError(f"inputs must be a tensor, or tuples, lists or mappings of tensors, not {tree!r:.60}")
    return leaf
