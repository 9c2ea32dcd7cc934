"""Trees of tensors."""

from typing import NamedTuple

import torch

from lossnet.trees import tree_leaves, tree_map


class Pair(NamedTuple):
    first: torch.Tensor
    second: object


TREE = {"a": torch.tensor([1.0]), "b": [torch.tensor([2]), (torch.tensor([3.0]), "word", None)]}


def test_maps_keep_the_form():
    tree = Pair(torch.tensor([0.0]), TREE)
    doubled = tree_map(lambda leaf: 2 * leaf, tree)
    assert isinstance(doubled, Pair)
    assert isinstance(doubled.second["b"], list)
    assert doubled.second["b"][1][1:] == ("word", None)
    assert [leaf.item() for leaf in tree_leaves(doubled)] == [0, 2, 4, 6]
    assert [leaf.item() for leaf in tree_leaves(tree)] == [0, 1, 2, 3]


def test_a_tensor_is_a_tree():
    assert tree_map(len, torch.zeros(3)) == 3
    assert len(list(tree_leaves(torch.zeros(3)))) == 1
    assert list(tree_leaves(None)) == []
