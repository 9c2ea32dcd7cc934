import math

import numpy as np
import pytest
import torch

from lossnet.cli import main
from lossnet.data import MultiLabelData
from lossnet.energies import LabelResidual
from lossnet.loading import Loaded, load
from lossnet.run import Run
from lossnet.settings import Settings
from lossnet.structure import Structure, find_structure, told_apart


def sets(count, kind, seed=0):
    """Logits of networks that know nothing, and sets of four labels: independent, or one of two modes."""
    rng = np.random.default_rng(seed)
    truth = (rng.random((count, 4)) < 0.5).astype("float32")
    if kind == "modes":
        truth = np.where(rng.random((count, 1)) < 0.5, [1, 0, 1, 0], [0, 1, 0, 1]).astype("float32")
    return torch.zeros(count, 4), torch.from_numpy(truth)


def gains(kind, logits=0.0):
    train, valid = sets(800, kind), sets(400, kind, seed=1)
    losses = [told_apart(train[0] + logits, train[1], valid[0] + logits, valid[1], rank) for rank in (0, 4)]
    return Structure(20, *losses)


def test_two_modes_are_found():
    """Of 20 drawn sets, an eighth are one of the modes: the best loss is the mean of log(1 + those)."""
    found = gains("modes")
    counts = np.arange(21)
    chances = [math.comb(20, k) * (1 / 8) ** k * (7 / 8) ** (20 - k) for k in counts]
    best = float(np.dot(chances, np.log1p(counts)))
    assert float(found.structured.mean()) == pytest.approx(best, abs=0.2)
    assert float(found.corrected.mean()) == pytest.approx(found.chance, abs=0.1)
    assert found.verdict().startswith("labels say")


def test_independent_labels_have_none():
    found = gains("independent")
    for losses in (found.corrected, found.structured):
        assert float(losses.mean()) == pytest.approx(found.chance, abs=0.02)
    assert found.verdict().startswith("no sign")


def test_wrong_probabilities_are_no_structure():
    """Networks that are too sure are corrected label by label, and nothing is left for structure."""
    found = gains("independent", logits=torch.tensor([1.0, -1.0, 2.0, 0.0]))
    assert float(found.corrected.mean()) < found.chance - 0.2
    *_, (_, gain, error) = found.rows()
    assert gain < 2 * error + 0.03


def test_the_energy_is_the_formula():
    torch.manual_seed(0)
    energy = LabelResidual(4, rank=2).double()
    for parameter in energy.parameters():
        torch.nn.init.normal_(parameter)
    x, y = torch.randn(3, 4).double(), (torch.rand(3, 5, 4) < 0.5).double()
    p, pairs = x.sigmoid(), (energy.factors.T * energy.strengths) @ energy.factors
    for b in range(3):
        for k in range(5):
            one = y[b, k]
            wanted = one @ (energy.correction.weight @ p[b] + energy.correction.bias)
            wanted = wanted + sum(one[i] * one[j] * pairs[i, j] for i in range(4) for j in range(4) if i != j)
            wanted = wanted + energy.counts[int(one.sum())] + energy.spread * (one.sum() - p[b].sum()) ** 2
            torch.testing.assert_close(energy(x, y)[b, k], -wanted)
    relaxed = torch.rand(3, 2, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda y: energy(x, y), relaxed)


def test_an_energy_that_was_not_trained_is_zero():
    assert (LabelResidual(4, rank=0)(torch.randn(3, 4), torch.ones(3, 5, 4)) == 0).all()
    assert (LabelResidual(4)(torch.randn(3, 4), torch.ones(3, 5, 4)) == 0).all()


def made(kind):
    rng = np.random.default_rng(0)
    truth = sets(600, kind)[1].numpy()
    data = MultiLabelData.from_arrays(rng.normal(size=(600, 3)), truth)
    return Loaded.from_parts(data.take(range(400)), data.take(range(400, 600)))


def run():
    return Run("made", settings=Settings(epochs=2, task_hidden=8, patience_steps=0), progress=False)


@pytest.mark.parametrize(("kind", "begins"), [("modes", "labels say"), ("independent", "no sign")])
def test_data_with_structure_and_without(kind, begins):
    assert find_structure(run(), made(kind)).verdict().startswith(begins)


def test_the_same_seed_gives_the_same_figures():
    one, other = (find_structure(run(), made("modes")) for _ in range(2))
    assert torch.equal(one.structured, other.structured)


def test_structure_is_looked_for_in_label_sets():
    with pytest.raises(ValueError, match="sets of labels, not in masks"):
        find_structure(Run("digits-scenes", progress=False), load("digits-scenes"))


def test_the_command(capsys):
    assert main(["structure", "digits-pairs", "--epochs", "1", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "gained by structure" in shown
    assert "nats an instance" in shown
