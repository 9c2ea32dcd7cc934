import dataclasses

import pytest
import torch
from torch import nn

from lossnet import losses, methods
from lossnet.build import METHODS, build, check_names, default_loss
from lossnet.losses import Asymmetric
from lossnet.nets import InputLayer
from lossnet.settings import Settings
from lossnet.tasks import LabelTask

CLASSES = {
    ("cross-entropy", "none"): methods.CrossEntropy,
    ("spen", "margin"): methods.SPEN,
    ("dvn", "regression"): methods.DVN,
    ("nce-energy", "nce"): methods.NCEEnergy,
    ("infnet", "perceptron"): methods.InfNet,
    ("infnet-plus", "margin"): methods.InfNetPlus,
    ("seal-static", "nce"): methods.SEALStatic,
    ("seal", "nce"): methods.SEAL,
    ("implicit", "cd"): methods.Implicit,
}


def made(method, loss, **settings):
    settings = {"task_hidden": 5, "energy_hidden": 6, "global_hidden": 3, **settings}
    return build(method, loss, Settings(**settings), LabelTask.of_size(4, 2))


@pytest.mark.parametrize(("names", "kind"), CLASSES.items(), ids=map("-".join, CLASSES))
def test_names_mean_classes(names, kind):
    assert type(made(*names)) is kind


def test_every_method_has_a_class_and_a_line():
    assert {method for method, _ in CLASSES} | {"crf"} == set(METHODS)  # that one is for tags
    assert all(entry.summary and entry.losses for entry in METHODS.values())


def test_the_default_loss_is_the_first():
    assert [default_loss(name) for name in ("cross-entropy", "infnet", "seal")] == [
        "none",
        "margin",
        "nce",
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("margin", losses.Margin),
        ("regression", losses.Regression),
        ("regression-s", losses.RegressionS),
        ("nce", losses.NCE),
        ("ranking", losses.Ranking),
        ("cd", losses.CD),
    ],
)
def test_seals_losses(name, kind):
    loss = made("seal", name, samples=7, perturb_std=0.3).loss
    assert type(loss) is kind
    if name not in ("margin", "regression"):
        assert loss.samples == 7
    if name == "regression-s":
        assert loss.std == 0.3


@pytest.mark.parametrize(
    ("loss", "stages"),
    [
        ("margin", ["local energy", "energy", "task net"]),
        ("regression", ["energy", "task net"]),
        ("nce", ["noise net", "energy", "task net"]),
    ],
)
def test_seal_statics_teachers(loss, stages):
    assert [stage.name for stage in made("seal-static", loss).stages()] == stages


def test_settings_reach_the_networks():
    method = made(
        "seal",
        "nce",
        task_layers=3,
        task_dropout=0.4,
        energy_layers=1,
        energy_dropout=0.1,
        energy_steps=3,
        task_steps=4,
        energy_weight=2.0,
        ce_weight=3.0,
        score_weight=4.0,
    )
    widths = [part.out_features for part in method.task_net if isinstance(part, nn.Linear | InputLayer)]
    assert widths == [5, 5, 5, 2]
    assert [part.p for part in method.task_net if isinstance(part, nn.Dropout)] == [0.4] * 3
    encoder = method.energy.encoder
    assert [part.out_features for part in encoder if isinstance(part, InputLayer)] == [6]
    assert [part.p for part in encoder if isinstance(part, nn.Dropout)] == [0.1]
    assert method.energy.terms[1].mixing.weight.shape == (2, 3)
    assert (method.energy_steps, method.task_steps) == (3, 4)
    weights = method.task_loss
    assert (weights.energy_weight, weights.ce_weight, weights.score_weight) == (2.0, 3.0, 4.0)


def test_settings_reach_inference():
    method = made(
        "dvn",
        "regression",
        inference_steps=9,
        inference_lr=0.7,
        inference_update="gradient",
        inference_optimizer="adam",
        inference_start="noise",
        inference_candidates=3,
    )
    found = dataclasses.asdict(method.inference)
    wanted = {"steps": 9, "lr": 0.7, "update": "gradient", "optimizer": "adam", "start": "noise"}
    assert {**wanted, "candidates": 3}.items() <= found.items()


def test_a_conditioned_energy_sees_the_input_in_its_global_term():
    for conditioned in (False, True):
        energy = made("seal", "nce", conditioned=conditioned, energy_dropout=0.0).energy
        assert (energy.terms[1].condition is not None) == conditioned


def test_soft_f1_has_a_weight_of_its_own_unless_given():
    assert made("cross-entropy", "soft-f1").task_loss.score_weight == pytest.approx(0.3 * 2)
    assert made("cross-entropy", "soft-f1", score_weight=7.0).task_loss.score_weight == 7.0
    assert made("cross-entropy", "none").task_loss.score_weight == 0.0
    assert made("cross-entropy", "none", score_weight=7.0).task_loss.score_weight == 7.0


def test_asymmetric_replaces_cross_entropy():
    assert isinstance(made("cross-entropy", "asymmetric").task_loss.fixed, Asymmetric)


def test_what_predicts_starts_where_inference_does():
    assert made("nce-energy", "nce").predictors == ("energy",)
    assert made("nce-energy", "nce", inference_start="net").predictors == ("energy", "noise_net")
    assert made("seal-static", "nce", inference_start="net").predictors == ("task_net",)


def test_the_same_seed_builds_the_same_networks():
    torch.manual_seed(3)
    one = made("seal", "nce").state_dict()
    torch.manual_seed(3)
    other = made("seal", "nce").state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("method", "loss", "message"),
    [
        ("seel", "nce", "no method 'seel'; there are cross-entropy, spen"),
        ("dvn", "nce", "method dvn has no loss 'nce'; it takes regression"),
        ("seal", "", "method seal has no loss ''"),
        ("seal-static", "ranking", "method seal-static has no loss 'ranking'"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(method, loss, message):
    with pytest.raises(ValueError, match=message):
        check_names(method, loss)
    with pytest.raises(ValueError, match=message):
        made(method, loss)
