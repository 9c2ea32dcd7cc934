import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import pulls
from benchmarks.pulls import Pairs, choose, draw, table
from lossnet.energies import Scorer

WEIGHTS = torch.tensor([[0.0, 3.0, -1.0], [3.0, 0.0, 0.5], [-1.0, 0.5, 0.0]])


class Quadratic(nn.Module):
    """``−½ yᵀ W y + ⅓ Σ y_0 y_1²``, whose pull of one label on another is known."""

    def forward(self, x, y):
        return -((y @ WEIGHTS) * y).sum(-1) / 2 + y[..., 0] * y[..., 1] ** 2 / 3


def found():
    torch.manual_seed(0)
    y = torch.rand(6, 3)
    truth = torch.tensor([[1.0, 1, 0], [1, 1, 1], [0, 0, 1], [0, 0, 0]])
    pairs = Pairs([0, 1, 2], related=[(0, 1)], unrelated=[(2, 0), (2, 1)])
    return y, pulls.pulls(Scorer(Quadratic()), torch.zeros(6, 1), y, pairs, truth)


def test_curves_and_changes_against_the_formula():
    y, result = found()
    at, along = torch.tensor(pulls.AT), torch.linspace(0, 1, pulls.STEPS)
    # −∂E/∂y_1 = 3 y_0 + ½ y_2 − ⅔ y_0 y_1, less its value at y_0 = 0
    expected = along * (3 - 2 / 3 * at.unsqueeze(1))
    torch.testing.assert_close(torch.tensor(result["curves"]["related"]), expected)
    # −∂E/∂y_0 = 3 y_1 − y_2 − ⅓ y_1² along y_2
    torch.testing.assert_close(torch.tensor(result["curves"]["unrelated"]), -along.expand(3, -1))
    strongest = 3 - 2 / 3 * float(y[:, 1].mean())
    assert result["scale"] == pytest.approx(strongest)
    assert result["changes"] == pytest.approx({"related": 1, "unrelated": -0.25 / strongest})


def test_pairs_are_of_the_taxonomy_and_of_strangers():
    rng = np.random.default_rng(0)
    parent = rng.random(4000) < 0.4
    child = parent & (rng.random(4000) < 0.8)
    grandchild = child & (rng.random(4000) < 0.8)
    stranger, everyone = rng.random(4000) < 0.4, np.ones(4000)
    names = ["root", "1", "1/2", "1/2/3", "10"]
    pairs = choose(names, np.stack([everyone, parent, child, grandchild, stranger], 1))
    assert pairs.labels == [1, 2, 3, 4]
    assert sorted(pairs.related) == [(1, 0), (2, 1)], "a grandchild is no child, and 10 none of 1"
    assert {tuple(sorted(pair)) for pair in pairs.unrelated} <= {(0, 3), (1, 3), (2, 3)}
    assert pairs.unrelated


def test_the_table_and_the_picture(tmp_path):
    _, result = found()
    shown = {name: ["a/b", "a"] for name in pulls.KINDS}
    lines = [{**result, "title": "DVN", "seed": seed, "shown": shown} for seed in (1, 0)]
    (row,) = table(lines)
    assert row[1] == "DVN"
    assert row[2].startswith("100.0")
    assert row[-1] == "0, 1"
    draw(tmp_path / "pulls.png", lines)
    assert (tmp_path / "pulls.png").stat().st_size > 1000
