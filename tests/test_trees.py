from collections import namedtuple

import pytest
import torch

from lossnet.spaces import Batch, Mask, MultiLabel, Tags, mean
from lossnet.trees import first_leaf, tree_leaves, tree_map

Pair = namedtuple("Pair", "ids lengths")
TREES = {
    "tensor": torch.ones(2),
    "tuple": (torch.ones(2), torch.zeros(2)),
    "list": [torch.ones(2), [torch.zeros(2)]],
    "dict": {"a": torch.ones(2), "b": {"c": torch.zeros(2)}},
    "named tuple": Pair(torch.ones(2), torch.zeros(2)),
    "with None": (torch.ones(2), None),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_mapped_tree_has_the_same_form(tree):
    mapped = tree_map(lambda part: part + 1, tree)
    assert type(mapped) is type(tree)
    pairs = list(zip(tree_leaves(mapped), tree_leaves(tree), strict=True))
    assert pairs
    for ours, theirs in pairs:
        assert torch.equal(ours, theirs + 1)


def test_a_tree_without_tensors_has_no_first_leaf():
    with pytest.raises(TypeError, match="inputs must be a tensor"):
        first_leaf({"text": "abc"})


def test_batches_of_trees_move_and_know_their_size():
    batch = Batch(Pair(torch.zeros(3, 4), torch.ones(3)), None, None, {"ce": torch.ones(3)})
    assert batch.size == 3
    moved = batch.to("meta")
    assert {part.device.type for part in tree_leaves(moved)} == {"meta"}
    assert isinstance(moved.x, Pair)
    assert moved.y is None


@pytest.mark.parametrize("space", [MultiLabel(2), Tags(2), Mask()], ids=lambda space: type(space).__name__)
def test_zeros_of_a_tree_are_those_of_its_first_leaf(space):
    x = torch.ones(3, 4, 5)
    assert torch.equal(space.zeros({"x": x, "more": torch.ones(3)}), space.zeros(x))


def test_weights_of_terms_count_for_their_term():
    losses, weights = torch.tensor([1.0, 3.0]), {"ce": torch.tensor([2.0, 0.0])}
    assert mean(losses, weights) == 1.0
    assert mean(losses, weights, "score") == losses.mean()
    assert Batch(losses, None, None, weights).mean(losses) == 1.0


def test_weights_of_an_unknown_term_are_refused():
    with pytest.raises(ValueError, match="weights of entropy: the task loss has terms energy, ce, score"):
        mean(torch.ones(2), {"entropy": torch.ones(2)})
