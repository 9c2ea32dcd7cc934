"""Networks and energies of one's own, from training to a folder and back."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import lossnet
from lossnet.build import METHODS, build
from lossnet.energies import LabelInteraction, Local, Scorer, Sum
from lossnet.loading import load
from lossnet.model import Model, ModelError, load_energy
from lossnet.nets import MLP
from lossnet.own import OwnParts
from lossnet.run import Run, new_model, train
from lossnet.settings import Settings
from lossnet.task import Task

QUICK = Settings(
    epochs=1, batch_size=200, samples=2, inference_steps=2, task_hidden=4, energy_hidden=4, global_hidden=3,
    task_lr=1e-2,
)  # fmt: skip


class Net(nn.Module):
    """A network that is told the numbers of inputs and of logits."""

    def __init__(self, inputs, outputs, hidden=12):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))

    def forward(self, x):
        return self.layers(x)


class TwoLabels(nn.Module):
    """Wants two labels, as strongly as it learns to."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.3))

    def forward(self, x, y):
        return self.weight.exp() * (y.sum(-1) - 2) ** 2


def of_task(task):
    return nn.Linear(task.input.width, task.output.logits)


@pytest.fixture(scope="module")
def digits():
    data = load("digits-pairs")
    return dataclasses.replace(data, train=data.train.take(range(400)))


def run(digits, own, method="cross-entropy", loss="", output=None, settings=QUICK):
    asked = Run("digits-pairs", method, loss, settings, output=output, device="cpu", progress=False, own=own)
    return train(asked, digits)


NETS = {
    "a module": nn.Linear(64, 10),
    "a class of torch's": nn.Linear,
    "a class": Net,
    "a function of the task": of_task,
    "a function": lambda: nn.Linear(64, 10),
    "a function of sizes": lambda inputs, outputs: MLP(inputs, 7, 1, outputs),
}


@pytest.mark.parametrize("name", NETS)
def test_a_task_net_comes_in_many_forms_and_back_from_a_folder(digits, tmp_path, name):
    net = NETS[name]
    settings = dataclasses.replace(QUICK, epochs=12, batch_size=50, task_lr=3e-2)
    result = run(digits, OwnParts(task_net=net), output=tmp_path, settings=settings)
    assert result["metrics"]["test"]["f1_tuned"] > 0.45  # all labels have 1/3
    with pytest.raises(ModelError, match=r"its task_net is of your own.*lossnet\.load\(folder, task_net=…\)"):
        lossnet.load(tmp_path)
    card = (tmp_path / "model" / "README.md").read_text()
    assert 'model = lossnet.load("this folder", task_net=…)' in card
    model = lossnet.load(tmp_path, task_net=net)
    relaxed, truth = model.probabilities(digits.test)
    measured = model.task.output.meter(model.decision).measure(relaxed, truth)
    assert measured == pytest.approx(result["metrics"]["test"])
    model.save(tmp_path / "again")
    again = lossnet.load(tmp_path / "again", task_net=net)
    assert torch.equal(again.probabilities(digits.test)[0], relaxed)
    with pytest.raises(ModelError, match="task_net"):
        lossnet.load(tmp_path / "again")


def test_a_module_is_copied_and_every_run_starts_from_it(digits):
    net = nn.Linear(64, 10)
    before = net.weight.detach().clone()
    asked = Run("digits-pairs", "cross-entropy", settings=QUICK, own=OwnParts(task_net=net))
    for seed in (0, 1):
        model = new_model(dataclasses.replace(asked, seed=seed), digits)
        assert torch.equal(model.method.task_net.weight, before)
        assert model.method.task_net is not net
    run(digits, OwnParts(task_net=net))
    assert torch.equal(net.weight, before)


def test_a_class_is_initialised_by_the_seed(digits):
    asked = Run("digits-pairs", "cross-entropy", settings=QUICK, own=OwnParts(task_net=Net))
    weights = [
        new_model(dataclasses.replace(asked, seed=seed), digits).method.task_net.layers[0].weight
        for seed in (0, 0, 1)
    ]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_another_module_than_that_of_the_folder_is_refused(digits, tmp_path):
    run(digits, OwnParts(task_net=Net), output=tmp_path)
    for other in (nn.Linear, lambda: Net(64, 10, hidden=6), lambda: Net(3, 10)):
        with pytest.raises(ModelError, match="damaged model folder"):
            lossnet.load(tmp_path, task_net=other)


# ---------------------------------------------------------------- energies


def own_sum(task):
    encoder = MLP(task.input.width, 6, 1, None)
    return Sum(encoder, Local(6, task.output.logits), LabelInteraction(task.output.logits, 3))


ENERGIES = {"a module": TwoLabels(), "a class": TwoLabels, "a function of the task": own_sum}


@pytest.mark.parametrize("name", ENERGIES)
def test_an_energy_of_ones_own_teaches_and_is_kept(digits, tmp_path, name):
    energy = ENERGIES[name]
    run(digits, OwnParts(energy=energy), "seal", "nce", output=tmp_path)
    model = lossnet.load(tmp_path)  # prediction never needs it
    assert model.predict_proba(np.zeros((2, 64))).shape == (2, 10)
    with pytest.raises(ModelError, match=r"its energy is of your own.*energy=…"):
        load_energy(tmp_path)
    kept = load_energy(tmp_path, energy=energy)
    assert isinstance(kept, Scorer) == (name != "a function of the task")
    assert kept(torch.zeros(2, 64), torch.rand(2, 3, 10)).shape == (2, 3)
    if isinstance(kept, Scorer):
        assert kept.module.weight.item() != pytest.approx(0.3)


def test_an_energy_that_predicts_must_be_given(digits, tmp_path):
    run(digits, OwnParts(energy=own_sum), "dvn", "regression", output=tmp_path)
    with pytest.raises(ModelError, match=r"lossnet\.load\(folder, energy=…\)"):
        lossnet.load(tmp_path)
    x = np.random.default_rng(0).random((3, 64))
    model = lossnet.load(tmp_path, energy=own_sum)
    assert len(np.unique(model.predict_proba(x))) > 1


def test_a_frozen_energy_stays_as_it_is_and_still_teaches(digits):
    settings = dataclasses.replace(QUICK, energy_weight=5.0)
    asked = Run("digits-pairs", "seal", "nce", settings, device="cpu", progress=False)
    nets = []
    for own in (OwnParts(energy=TwoLabels(), frozen=True), OwnParts(energy=_Nothing(), frozen=True)):
        fitted = lossnet.run.fit(dataclasses.replace(asked, own=own), digits)
        nets.append(fitted.model.method.task_net.state_dict())
        if isinstance(own.energy, TwoLabels):
            assert fitted.model.method.energy.module.weight.item() == pytest.approx(0.3)
    assert any(not torch.equal(one, nets[1][name]) for name, one in nets[0].items())


@pytest.mark.parametrize("method", ["implicit", "seal-static", "dvn"])
def test_methods_that_train_the_energy_refuse_a_frozen_one(digits, method):
    with pytest.raises(ValueError, match=f"method {method} trains the energy, and this one is frozen"):
        run(digits, OwnParts(energy=TwoLabels(), frozen=True), method)


class _Nothing(nn.Module):
    """Says nothing of outputs."""

    def forward(self, x, y):
        return 0 * y.sum(-1)


def test_an_energy_of_the_wrong_shape_is_told():
    class Wrong(nn.Module):
        def forward(self, x, y):
            return y.sum()

    with pytest.raises(
        ValueError, match=r"gives the shape \(\) for 3 candidates of 2 instances; it must be \(2, 3\)"
    ):
        Scorer(Wrong())(torch.zeros(2, 1), torch.zeros(2, 3, 4))


# ---------------------------------------------------------------- what is given


@pytest.mark.parametrize("name", ["task_net", "energy"])
def test_what_makes_no_module_is_refused(name):
    with pytest.raises(TypeError, match=rf"{name} is 'resnet'; give a torch\.nn\.Module"):
        OwnParts(**{name: "resnet"})
    own = OwnParts(**{name: lambda: 3})
    task = Task.of_sizes(inputs=4, labels=3)
    with pytest.raises(TypeError, match=rf"{name} made int, not a torch\.nn\.Module"):
        getattr(own, f"make_{name}")(task)


def test_a_frozen_energy_must_be_given():
    with pytest.raises(ValueError, match="a frozen energy must be given"):
        OwnParts(frozen=True)
    assert OwnParts().names == []
    assert OwnParts(task_net=Net, energy=TwoLabels).names == ["task_net", "energy"]


ALONE = {
    "crf",
    "cross-entropy",
    "stack",
    "structured-tuning",
    "laco",
    "sgm",
    "cglow",
    "pseudo-labels",
    "mean-teacher",
    "rules",
    "expectation",
}  # without an energy beside them


@pytest.mark.parametrize("method", sorted(set(METHODS) - ALONE))
def test_every_method_takes_ones_own_parts(method):
    task = dataclasses.replace(Task.of_sizes(inputs=4, labels=3), own=OwnParts(task_net=Net, energy=own_sum))
    built = build(method, METHODS[method].default_loss, QUICK, task)
    nets = dict(built.named_children())
    if "task_net" in nets:
        assert isinstance(nets["task_net"], Net)
    if "energy" in nets:
        assert type(nets["energy"]) is Sum
        assert nets["energy"].encoder.width == 6
    assert {"task_net", "energy"} & set(nets)


def test_an_energy_that_nobody_would_ask_is_refused(digits):
    with pytest.raises(ValueError, match="method cross-entropy has no energy; leave energy= out"):
        run(digits, OwnParts(energy=TwoLabels))


def test_files_in_memory_take_them_too(digits):
    asked = Run("digits-pairs", "seal", "nce", QUICK, own=OwnParts(task_net=Net, energy=own_sum))
    model = new_model(asked, digits)
    again = Model.from_files(model.files(), asked.own)
    for name, value in model.method.state_dict().items():
        assert torch.equal(again.method.state_dict()[name], value)
    with pytest.raises(ModelError, match="task_net is of your own"):
        Model.from_files(model.files())
