"""Settings, threads and decoders as parameters of all estimators."""

import dataclasses
import inspect
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from lossnet import MultiLabelClassifier, Segmenter, SequenceTagger
from lossnet.decoding import Decision, ExpectedF1
from lossnet.model import Model
from lossnet.settings import Settings

SMALL = {"task_hidden": 16, "energy_hidden": 8, "global_hidden": 4, "samples": 4}
ESTIMATORS = [MultiLabelClassifier, SequenceTagger, Segmenter]


def quick(**changes):
    usual = {
        "method": "seal",
        "epochs": 2,
        "learning_rate": 0.02,
        **SMALL,
        "random_state": 0,
        "device": "cpu",
    }
    return MultiLabelClassifier(**{**usual, **changes})


@pytest.fixture(scope="module")
def problem():
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 5))
    return x, (x @ random.normal(size=(5, 3)) > 0).astype(int)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_every_setting_is_a_parameter(kind):
    names = {field.name for field in dataclasses.fields(Settings)}
    parameters = kind().get_params()
    assert names <= set(parameters)
    others = names - {"epochs", "batch_size"}
    assert all(parameters[name] is None for name in others)
    assert {"task_net", "energy", "frozen_energy", "optimizer", "scheduler", "callbacks"} <= set(parameters)
    assert names <= set(inspect.signature(kind).parameters)
    changed = kind(samples=7).set_params(energy_weight=2.0)
    assert (changed.samples, changed.energy_weight) == (7, 2.0)
    for again in (clone(changed), pickle.loads(pickle.dumps(changed))):
        assert again.get_params() == changed.get_params()
    assert "samples=7" in repr(changed)


def test_a_subclass_may_have_parameters_of_its_own():
    class Mine(MultiLabelClassifier):
        def __init__(self, *, extra=1, epochs=5):
            super().__init__(epochs=epochs)
            self.extra = extra

    class Passing(MultiLabelClassifier):
        def __init__(self, extra=1, **parameters):
            super().__init__(**parameters)
            self.extra = extra

    assert (Mine(extra=2).extra, clone(Mine(extra=2)).get_params()) == (2, {"epochs": 5, "extra": 2})
    assert (Passing(2, samples=3).extra, Passing(2, samples=3).samples) == (2, 3)


def test_own_parameters_of_estimators_stay_their_own():
    assert "inputs" in MultiLabelClassifier().get_params()
    assert "inputs" not in SequenceTagger().get_params()
    assert "embeddings" not in Segmenter().get_params()


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_unknown_parameters_are_refused(kind):
    with pytest.raises(TypeError, match=rf"{kind.__name__} has no parameter 'epoch'; did you mean epochs\?"):
        kind(epoch=3)
    with pytest.raises(TypeError, match=r"no parameter 'speed'; get_params\(\) has all"):
        kind(speed=3)
    with pytest.raises(ValueError, match="Invalid parameter 'speed'"):
        kind().set_params(speed=3)


def test_settings_are_searched_over_and_checked(problem):
    x, y = problem
    grid = {"task_hidden": [1, 32], "task_lr": [1e-6, 0.05]}
    search = GridSearchCV(quick(method="cross-entropy", epochs=5), grid, cv=2).fit(x, y)
    assert search.best_params_ == {"task_hidden": 32, "task_lr": 0.05}
    assert search.best_estimator_.model_.settings.task_hidden == 32
    assert search.best_estimator_.model_.settings.energy_lr == 0.02
    with pytest.raises(ValueError, match="samples must be above 0"):
        quick(samples=0).fit(x, y)


def test_one_thread_unless_told_and_restored_afterwards(problem, monkeypatch):
    x, y = problem
    seen = []
    predict = Model.probabilities
    monkeypatch.setattr(
        Model, "probabilities", lambda *args: seen.append(torch.get_num_threads()) or predict(*args)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        quick(epochs=1).fit(x, y).predict(x)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 3
        seen.clear()
        quick(epochs=1, threads=2).fit(x, y)
        assert set(seen) == {2}
        seen.clear()
        quick(epochs=1, threads=None).fit(x, y)
        assert set(seen) == {3}
        with pytest.raises(ValueError, match="trains in stages"):
            quick(method="spen").partial_fit(x, y)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_outputs_are_decoded_as_asked(problem):
    x, y = problem
    classifier = quick().fit(x, y)
    probabilities = classifier.predict_proba(x)
    classifier.model_.decision = Decision(0.9)  # so that ways of decoding differ
    np.testing.assert_array_equal(classifier.predict(x), probabilities >= 0.9)
    tuned = classifier.score(x, y)
    np.testing.assert_array_equal(classifier.set_params(decode="0.5").predict(x), probabilities >= 0.5)
    expected = ExpectedF1()(torch.from_numpy(probabilities)).numpy()
    np.testing.assert_array_equal(classifier.set_params(decode="expected-f1").predict(x), expected)
    assert classifier.score(x, y) != tuned
    np.testing.assert_array_equal(classifier.set_params(decode=ExpectedF1()).predict(x), expected)
    with pytest.raises(ValueError, match="cannot be decoded by 'dice'"):
        classifier.set_params(decode="dice").predict(x)


def test_the_network_is_copied_to_float64_once(problem, monkeypatch):
    x, y = problem
    classifier = quick().fit(x, y)
    copies = []
    double = Model.double
    monkeypatch.setattr(Model, "double", lambda model: copies.append(model) or double(model))
    first = classifier.predict_proba(x)
    np.testing.assert_array_equal(classifier.predict_proba(x), first)
    classifier.predict(x)
    assert len(copies) == 1
    assert first.dtype == np.float64
    classifier.partial_fit(x, y)  # the networks have changed
    assert (classifier.predict_proba(x) != first).any()
    assert len(copies) == 2
    classifier.fit(x[::2], y[::2])
    classifier.predict(x)
    assert len(copies) == 3
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(x), classifier.predict_proba(x))
