"""Networks, energies, optimizers, schedulers and callbacks of one's own, in all estimators."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn

import lossnet
from lossnet import MultiLabelClassifier, Segmenter, SequenceTagger
from lossnet.model import ModelError
from lossnet.nets import BiLSTM, Tagger, WordVectors

SMALL = {"energy_hidden": 8, "global_hidden": 4, "samples": 4, "image_width": 4}
SENTENCES = [
    ["Ann", "Lee", "saw", "Rome"],
    ["Bo", "left", "Oslo"],
    ["Ann", "left"],
    ["Rome", "saw", "Bo"],
] * 3
TAGS = [["N", "N", "V", "N"], ["N", "V", "N"], ["N", "V"], ["N", "V", "N"]] * 3


class Wide(nn.Sequential):
    """A task net that is told its sizes."""

    def __init__(self, inputs, outputs):
        super().__init__(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


class AddsFour(nn.Module):
    """A task net that insists on its own precision."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.layer(x.float() + 4)


class Count(nn.Module):
    """An energy that wants a number of labels or pixels, whatever the input."""

    def __init__(self, wanted):
        super().__init__()
        self.wanted = nn.Parameter(torch.tensor(float(wanted)))

    def forward(self, x, y):
        return 10 * (y.flatten(2).sum(-1) - self.wanted) ** 2


class Rule(nn.Module):
    """An energy without parameters that wants the first two labels to be equal."""

    def forward(self, x, y):
        return 50 * (y[..., 0] - y[..., 1]) ** 2


def tag_net(task):
    """A task net that is made from the task."""
    words = WordVectors(
        torch.randn(task.input.width, 6), characters=len(task.input.lexicon.characters), columns=[6]
    )
    return Tagger(BiLSTM(words, 8), task.output.logits)


class Pixels(nn.Module):
    """A task net of images that takes no arguments."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


def quick(**changes):
    usual = {"method": "seal", "epochs": 4, "learning_rate": 0.02, **SMALL, "task_hidden": 16}
    return MultiLabelClassifier(**{**usual, "random_state": 0, "device": "cpu", **changes})


@pytest.fixture(scope="module")
def problem():
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 5))
    return x, (x @ random.normal(size=(5, 3)) > 0).astype(int)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).random((20, 8, 8))


# ---------------------------------------------------------------- task nets


@pytest.mark.parametrize("method", ["cross-entropy", "seal", "implicit", "infnet-plus", "seal-static"])
def test_a_class_of_task_nets(problem, method):
    x, y = problem
    classifier = quick(method=method, task_net=Wide, epochs=10, inference_steps=3).fit(x, y)
    assert type(classifier.model_.method.task_net) is Wide
    assert classifier.score(x, y) > 0.7
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(x), classifier.predict_proba(x))
    assert again.task_net is Wide
    assert again.partial_fit(x, y) if len(classifier.model_.method.stages()) == 1 else True


def test_a_module_is_copied_and_its_weights_are_where_training_starts(problem):
    x, y = problem
    torch.manual_seed(0)
    module = nn.Linear(5, 3)
    before = module.weight.detach().clone()
    classifier = quick(method="cross-entropy", task_net=module, learning_rate=1e-9, epochs=1).fit(x, y)
    torch.testing.assert_close(module.weight, before)
    torch.testing.assert_close(classifier.model_.method.task_net.weight.detach(), before)
    trained = quick(method="cross-entropy", task_net=module, epochs=20).fit(x, y)
    assert (trained.model_.method.task_net.weight != before).any()
    torch.testing.assert_close(module.weight, before)
    copied = clone(trained)
    assert copied.task_net is not module  # as scikit-learn clones whatever is no estimator
    torch.testing.assert_close(copied.task_net.weight, before)
    np.testing.assert_array_equal(copied.fit(x, y).predict_proba(x), trained.predict_proba(x))
    again = pickle.loads(pickle.dumps(trained))
    np.testing.assert_array_equal(again.predict_proba(x), trained.predict_proba(x))


def test_task_nets_predict_in_their_own_precision(problem):
    x, y = problem
    classifier = quick(method="cross-entropy", task_net=AddsFour).fit(x, y)
    assert classifier.predict_proba(x).dtype == np.float32


def test_task_nets_are_candidates_of_a_search(problem):
    x, y = problem
    grid = {"task_net": [nn.Linear, Wide, None], "learning_rate": [0.02]}
    search = GridSearchCV(quick(method="cross-entropy", epochs=8), grid, cv=2).fit(x, y)
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()
    assert search.best_params_["task_net"] in (nn.Linear, Wide, None)


def test_a_folder_needs_the_class_again(problem, tmp_path):
    x, y = problem
    classifier = quick(task_net=Wide).fit(x, y)
    classifier.model_.save(tmp_path / "model")
    model = lossnet.load(tmp_path, task_net=Wide)
    np.testing.assert_allclose(model.predict_proba(x), classifier.predict_proba(x))
    with pytest.raises(ModelError, match="task_net=…"):
        lossnet.load(tmp_path)


def test_parameters_changed_after_fitting_do_not_spoil_a_pickle(problem):
    x, y = problem
    classifier = quick(task_net=Wide).fit(x, y)
    again = pickle.loads(pickle.dumps(classifier.set_params(task_net=nn.Linear)))
    np.testing.assert_array_equal(again.predict_proba(x), classifier.predict_proba(x))
    assert again.task_net is nn.Linear


def test_networks_for_tags_and_masks(images):
    tagger = SequenceTagger(task_net=tag_net, epochs=8, learning_rate=0.03, random_state=0, **SMALL)
    assert tagger.fit(SENTENCES, TAGS).score(SENTENCES, TAGS) > 0.7
    again = pickle.loads(pickle.dumps(tagger))
    assert again.predict(SENTENCES) == tagger.predict(SENTENCES)
    segmenter = Segmenter(
        task_net=Pixels, method="cross-entropy", epochs=30, learning_rate=0.5, batch_size=4, random_state=0
    )
    assert segmenter.fit(images, images > 0.5).score(images, images > 0.5) > 0.9


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"task_net": "wide"}, TypeError, "task_net is 'wide'; give a torch.nn.Module"),
        ({"task_net": lambda: 3}, TypeError, "task_net made int, not a torch.nn.Module"),
        ({"task_net": nn.Linear(5, 1)}, ValueError, r"logits of the shape \(1, 1\) for outputs of \(1, 3\)"),
        ({"task_net": Wide, "method": "dvn"}, ValueError, "DVN has no task net"),
        ({"frozen_energy": True}, ValueError, "a frozen energy must be given"),
        ({"energy": Rule, "method": "cross-entropy"}, ValueError, "cross-entropy has no energy"),
        ({"energy": Count(2), "frozen_energy": True, "method": "dvn"}, ValueError, "dvn trains the energy"),
        ({"energy": Rule, "method": "implicit"}, ValueError, "implicit trains the energy"),
        ({"energy": nn.Linear}, TypeError, "positional argument"),
    ],
)
def test_parts_that_make_no_sense_are_refused(problem, parameters, error, message):
    with pytest.raises(error, match=message):
        quick(**parameters).fit(*problem)


# ---------------------------------------------------------------- energies


def test_an_energy_is_trained_with_the_task_net(problem):
    x, y = problem
    classifier = quick(energy=Count(0)).fit(x, y)
    assert classifier.model_.method.energy.module.wanted != 0
    again = pickle.loads(pickle.dumps(classifier))
    assert again.model_.method.energy.module.wanted == classifier.model_.method.energy.module.wanted
    energy = classifier.model_.files()["energy.safetensors"]
    assert energy == again.model_.files()["energy.safetensors"]


@pytest.mark.parametrize("wanted", [0, 3])
def test_a_frozen_energy_is_a_loss(problem, wanted):
    x, y = problem
    energy = Count(wanted)
    classifier = quick(energy=energy, frozen_energy=True, epochs=10, patience=100).fit(x, y)
    assert float(classifier.model_.method.energy.module.wanted) == wanted
    assert [stage.networks for stage in classifier.model_.method.stages()] == [("task_net",)]
    assert {name for entry in classifier.history_ for name in entry["losses"]} == {"task_net"}
    expected = classifier.predict_proba(x).sum(1).mean()
    assert abs(expected - wanted) < abs(quick(epochs=10).fit(x, y).predict_proba(x).sum(1).mean() - wanted)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(x), classifier.predict_proba(x))
    again.partial_fit(x, y)
    assert float(again.model_.method.energy.module.wanted) == wanted
    assert energy.wanted.requires_grad  # yours is left alone


def test_a_rule_without_parameters_is_a_loss(problem):
    x, y = problem
    free, ruled = quick(epochs=10).fit(x, y), quick(energy=Rule, epochs=10).fit(x, y)
    gaps = [np.abs(np.diff(one.predict_proba(x)[:, :2])).mean() for one in (free, ruled)]
    assert gaps[1] < gaps[0] / 2


def test_a_frozen_energy_for_masks(images):
    energy = Count(0)
    segmenter = Segmenter(
        energy=energy, frozen_energy=True, epochs=2, batch_size=4, random_state=0, task_net=Pixels
    )
    plain = Segmenter(method="cross-entropy", epochs=2, batch_size=4, random_state=0, task_net=Pixels)
    found = segmenter.fit(images, images > 0.5).predict_proba(images).mean()
    assert found < plain.fit(images, images > 0.5).predict_proba(images).mean()


# ---------------------------------------------------------------- optimizers, schedulers, callbacks


def halving(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def stop_after_two(entry):
    return entry["epoch"] == 2


def test_optimizers_schedulers_and_callbacks(problem):
    x, y = problem
    sgd = quick(optimizer=torch.optim.SGD, scheduler=halving).fit(x, y)
    assert [entry["lr"]["task_net"] for entry in sgd.history_] == [0.02, 0.01, 0.005, 0.0025]
    plain = quick(scheduler=halving).fit(x, y)
    assert (sgd.predict_proba(x) != plain.predict_proba(x)).any()
    entries = []
    stopped = quick(callbacks=[entries.append, stop_after_two]).fit(x, y)
    assert entries == stopped.history_
    assert len(entries) == 2
    assert clone(sgd).optimizer is torch.optim.SGD
    again = pickle.loads(pickle.dumps(sgd))
    np.testing.assert_array_equal(again.predict_proba(x), sgd.predict_proba(x))


def test_optimizers_of_tags_masks_and_a_search(problem, images):
    tagger = SequenceTagger(
        method="crf", optimizer=torch.optim.SGD, callbacks=[stop_after_two], random_state=0, epochs=5
    ).fit(SENTENCES, TAGS)
    assert len(tagger.history_) == 2
    segmenter = Segmenter(method="cross-entropy", callbacks=[stop_after_two], epochs=5, image_width=4)
    assert len(segmenter.fit(images, images > 0.5).history_) == 2
    grid = {"optimizer": [torch.optim.SGD, torch.optim.Adam]}
    search = GridSearchCV(quick(method="cross-entropy"), grid, cv=2).fit(*problem)
    assert search.best_params_ == {"optimizer": torch.optim.Adam}


def test_partial_fit_takes_the_optimizer(problem):
    x, y = problem
    made = []

    def sgd(parameters, lr):
        made.append(torch.optim.SGD(parameters, lr=lr))
        return made[-1]

    online = quick(optimizer=sgd)
    online.partial_fit(x, y).partial_fit(x, y)
    assert len(made) == 2  # one for each network, kept between calls
