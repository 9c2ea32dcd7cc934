"""Label sets that are known in part: who learns from them, who refuses them, what is measured."""

import numpy as np
import pytest
import torch

from lossnet import MultiLabelClassifier, Run, Settings
from lossnet.build import METHODS
from lossnet.data import Examples, FeatureTable, LabelTable
from lossnet.loading import Loaded
from lossnet.run import fit
from lossnet.spaces import MultiLabel

LABELS = 5
RANDOM = np.random.default_rng(0)
Y = (RANDOM.random((240, LABELS)) < 0.4).astype(float)
X = (Y @ RANDOM.normal(size=(LABELS, 8)) + 0.3 * RANDOM.normal(size=(240, 8))).astype("float32")
HIDDEN = RANDOM.random(Y.shape) < 0.4
PARTLY = np.where(HIDDEN, np.nan, Y)
SETTINGS = Settings(epochs=2, task_hidden=8, energy_hidden=8, global_hidden=4, samples=3, batch_size=16)
ABLE = [name for name, spec in METHODS.items() if spec.method.partly_known]
FOR_LABELS = [
    name for name, spec in METHODS.items() if any(spec.suits(loss, MultiLabel(2)) for loss in spec.losses)
]
pytestmark = pytest.mark.filterwarnings("ignore::lossnet.run.TrainingWarning")


def loaded(y, rows=200):
    data = Examples(FeatureTable(X), LabelTable(y))
    return Loaded.from_parts(data.take(range(rows)), data.take(range(rows, 240)))


def trained(method, data, **changes):
    settings = Settings(**{**vars(SETTINGS), **changes})
    run = Run("few", method, METHODS[method].default_loss, settings, device="cpu", progress=False)
    return fit(run, data)


@pytest.mark.parametrize("method", sorted(set(FOR_LABELS) - {"rules"}))
def test_a_method_learns_from_what_is_known_or_says_that_it_needs_all(method):
    if method not in ABLE:
        with pytest.raises(
            ValueError, match=f"method {method} needs all labels of a row, and some are unknown"
        ):
            trained(method, loaded(PARTLY))
        return
    fitted = trained(method, loaded(PARTLY))
    assert all(np.isfinite(value) for value in fitted.metrics["valid"].values())


def test_those_that_are_able_are_the_ones_that_should_be():
    wanted = {"cross-entropy", "seal", "implicit", "stack", "mean-teacher", "pseudo-labels", "rules"}
    assert wanted <= set(ABLE)
    assert not {"spen", "dvn", "nce-energy", "infnet", "infnet-plus", "seal-static", "crf"} & set(ABLE)


@pytest.mark.parametrize("method", ["cross-entropy", "stack", "mean-teacher"])
def test_a_label_that_is_never_known_is_never_learned(method):
    """Its column of the last layer stays where it began, but for weight decay, which is 0 here."""
    y = Y.copy()
    y[:, 2] = np.nan
    fitted = trained(method, loaded(y), weight_decay=0.0, epochs=3)
    other = y.copy()
    other[:, 2] = 0.0
    negative = trained(method, loaded(other), weight_decay=0.0, epochs=3)
    chances = [one.model.probabilities(loaded(Y).valid)[0][:, 2].mean().item() for one in (fitted, negative)]
    assert chances[0] > chances[1] + 0.1, "as a negative it is unlearned"


def test_hidden_labels_cost_less_than_wrong_ones():
    """A third of the positive labels hidden in training; the others, and validation data, are as they are."""
    hidden = (np.random.default_rng(1).random(Y.shape) < 0.5) & (Y > 0)
    hidden[200:] = False
    options = {"epochs": 25, "task_lr": 1e-2, "task_dropout": 0.0}
    f1 = {}
    for name, y in {
        "all": Y,
        "unknown": np.where(hidden, np.nan, Y),
        "negative": np.where(hidden, 0.0, Y),
    }.items():
        f1[name] = trained("cross-entropy", loaded(y), **options).metrics["valid"]["f1"]
    assert f1["all"] - f1["unknown"] < 0.5 * (f1["all"] - f1["negative"])
    assert f1["all"] - f1["negative"] > 0.05


def test_what_is_unknown_counts_in_no_metric():
    model = trained("cross-entropy", loaded(Y)).model
    data = loaded(PARTLY).valid
    relaxed, truth = model.probabilities(data)
    known = data.batch(torch.arange(len(data))).known
    assert (relaxed[known == 0] == 0).all()
    assert (truth[known == 0] == 0).all()
    whole, _ = model.probabilities(loaded(Y).valid)
    assert torch.equal(relaxed, whole * known)


@pytest.mark.parametrize("method", ["cross-entropy", "auto"])
def test_an_estimator_takes_them(method):
    settings = {"epochs": 3, "task_hidden": 8, "random_state": 0, "energy_hidden": 8, "budget": 0.02}
    classifier = MultiLabelClassifier(method=method, **settings)
    classifier.fit(X, PARTLY)
    as_lists = [[None if np.isnan(value) else int(value) for value in row] for row in PARTLY]
    other = MultiLabelClassifier(method=method, **settings).fit(X, as_lists)
    if method == "cross-entropy":
        assert np.array_equal(classifier.predict_proba(X), other.predict_proba(X))
    found = classifier.predict(X)
    right = (2 * (found * Y * ~HIDDEN).sum(1)) / np.maximum(((found + Y) * ~HIDDEN).sum(1), 1)
    labelled = (Y * ~HIDDEN).sum(1) > 0
    assert classifier.score(X, PARTLY) == pytest.approx(right[labelled].mean())


def test_rows_may_be_unknown_as_a_whole_beside_others_in_part():
    y = PARTLY.copy()
    y[::3] = np.nan
    classifier = MultiLabelClassifier(method="mean-teacher", epochs=2, task_hidden=8, random_state=0)
    assert classifier.fit(X, y).predict(X).shape == Y.shape
