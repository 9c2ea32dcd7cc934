"""Trees of tensors: inputs may be a tensor, or tuples, lists, named tuples and mappings of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor

__all__ = ["Tree", "first_leaf", "tree_leaves", "tree_map"]

#: a tensor, or a tuple, list, named tuple or mapping of trees; whatever else is in there is left alone
Tree: TypeAlias = Any


def tree_map(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """Return a tree of the same form with ``function`` applied to each of its tensors.

    >>> import torch
    >>> tree_map(lambda part: part + 1, {"ids": torch.zeros(2), "more": (torch.ones(1), None)})
    {'ids': tensor([1., 1.]), 'more': (tensor([2.]), None)}
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {name: tree_map(function, part) for name, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [tree_map(function, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def tree_leaves(tree: Tree) -> Iterator[Tensor]:
    """Iterate over a tree's tensors, from left to right.

    >>> import torch
    >>> [len(part) for part in tree_leaves((torch.zeros(2), [torch.ones(1)]))]
    [2, 1]
    """
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list, Mapping)):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tree_leaves(part)


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
