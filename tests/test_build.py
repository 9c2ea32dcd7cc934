import dataclasses
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from lossnet import losses, methods
from lossnet.build import METHODS, build, check_names, default_loss
from lossnet.data import Lexicon, Sentences, TagSet
from lossnet.hypergradient import SOLVERS, Identity, RankOne
from lossnet.inputs import Images, Words
from lossnet.losses import Asymmetric
from lossnet.methods.spec import named
from lossnet.nets import InputLayer
from lossnet.outputs import Masks, Roles, Tags
from lossnet.settings import Settings, all_settings
from lossnet.task import Task

WORDS = Sentences((("I", "bet", "I"),))
TASKS = {
    "labels": Task.of_sizes(inputs=4, labels=3),
    "masks": Task(Images(channels=1, size=(8, 8)), Masks()),
    "roles": Task(
        Words(Lexicon.fit(WORDS), np.zeros((3, 2), np.float32)), Roles(TagSet(("O", "B-A0", "I-A0"), "IOB2"))
    ),
    "tags": Task(Words(Lexicon.fit(WORDS), np.zeros((3, 2), np.float32)), Tags(TagSet(("O", "V")))),
}
TINY = {"task_hidden": 4, "energy_hidden": 4, "global_hidden": 2, "image_width": 8}

CLASSES = {
    ("cross-entropy", "none"): methods.CrossEntropy,
    ("stack", "none"): methods.Stack,
    ("spen", "margin"): methods.SPEN,
    ("spen-end-to-end", "none"): methods.EndToEndSPEN,
    ("gspen", "margin"): methods.GSPEN,
    ("dvn", "regression"): methods.DVN,
    ("nce-energy", "nce"): methods.NCEEnergy,
    ("infnet", "perceptron"): methods.InfNet,
    ("infnet-plus", "margin"): methods.InfNetPlus,
    ("alen", "margin"): methods.ALEN,
    ("ialen", "margin"): methods.IALEN,
    ("seal-static", "nce"): methods.SEALStatic,
    ("seal", "nce"): methods.SEAL,
    ("seal-refined", "nce"): methods.SEALRefined,
    ("implicit", "cd"): methods.Implicit,
    ("laco", "plcp"): methods.LACO,
    ("sgm", "likelihood"): methods.SGM,
    ("cglow", "likelihood"): methods.CGLOW,
    ("pseudo-labels", "none"): methods.PseudoLabels,
    ("mean-teacher", "none"): methods.MeanTeacher,
    ("rules", "semantic"): methods.Rules,
    ("corrected-teacher", "nce"): methods.CorrectedTeacher,
    ("r-spen", "margin"): methods.RankSPEN,
    ("sg-spen", "margin"): methods.SearchSPEN,
    ("reward-dvn", "regression"): methods.RewardDVN,
    ("reward-seal", "regression"): methods.RewardSEAL,
    ("reward-implicit", "nce"): methods.RewardImplicit,
}


def made(method, loss, **settings):
    settings = {"task_hidden": 5, "energy_hidden": 6, "global_hidden": 3, **settings}
    return build(method, loss, Settings(**settings), Task.of_sizes(4, 2))


@pytest.mark.parametrize(("names", "kind"), CLASSES.items(), ids=map("-".join, CLASSES))
def test_names_mean_classes(names, kind):
    suitable = "labels" if METHODS[names[0]].suits(names[1], TASKS["labels"].space(Settings())) else "masks"
    assert type(build(*names, Settings(**TINY), TASKS[suitable])) is kind


def test_every_method_has_a_class_and_a_line():
    assert {method for method, _ in CLASSES} | {"crf", "expectation", "structured-tuning"} == set(METHODS)
    assert all(spec.summary and spec.losses for spec in METHODS.values())
    assert all(METHODS[method].method is kind for (method, _), kind in CLASSES.items())


GRID = [(spec, loss, kind) for spec in METHODS.values() for loss in spec.losses for kind in TASKS]


@pytest.mark.parametrize(("spec", "loss", "kind"), GRID, ids=lambda part: getattr(part, "name", part))
def test_every_network_and_stage_has_a_learning_rate_among_settings(spec, loss, kind):
    task, settings = TASKS[kind], Settings(**TINY, task_lr=0.5, energy_lr=0.25)
    if not spec.suits(loss, task.space(settings)):
        with pytest.raises(ValueError, match=f"method {spec.name} with loss {loss} is not for {kind}"):
            build(spec.name, loss, settings, task)
        return
    method = build(spec.name, loss, settings, task)
    assert type(method) is spec.method
    rates = spec.learning_rates(settings)
    for stage in method.stages():
        for network in stage.networks:
            rate = rates.get(stage.name, rates.get(network))
            classifies = network not in ("energy", "pairs") or stage.name == "local energy"
            assert rate == (0.5 if classifies else 0.25), (stage.name, network)
    followers = {name for stage in method.stages() for name in stage.averages}
    assert set(rates) >= {name for name, _ in method.named_children()} - followers


def test_what_suits_what():
    kinds = {
        (spec.name, loss): [kind for kind, task in TASKS.items() if spec.suits(loss, task.space(Settings()))]
        for spec in METHODS.values()
        for loss in spec.losses
    }
    for loss in ("asymmetric", "dice", "lovasz"):
        assert kinds.pop(("cross-entropy", loss)) == ["labels", "masks"]
    assert kinds.pop(("crf", "likelihood")) == kinds.pop(("expectation", "none")) == ["roles", "tags"]
    assert kinds.pop(("structured-tuning", "unique-core-roles")) == ["roles"]
    for method in ("stack", "laco", "sgm", "gspen"):
        for loss in METHODS[method].losses:
            assert kinds.pop((method, loss)) == ["labels"]
    assert kinds.pop(("cglow", "likelihood")) == ["masks"]
    assert set(map(tuple, kinds.values())) == {tuple(TASKS)}


def test_names_of_losses_and_solvers_are_their_classes_own():
    assert [loss.name for loss in losses.ENERGY_LOSSES] == [*METHODS["seal"].losses]
    assert METHODS["seal"].losses == {loss.name: loss for loss in losses.ENERGY_LOSSES}
    assert [loss.name for loss in losses.FIXED_LOSSES] == ["asymmetric", "dice", "lovasz", "direct-ranking"]
    assert tuple(solver.name for solver in SOLVERS) == get_args(all_settings()["solver"].type)
    for solver in SOLVERS:
        built = made("implicit", "nce", solver=solver.name, solver_terms=3).solver
        assert type(built) is solver
        products = [
            getattr(built, name) for name in ("terms", "iterations", "samples") if hasattr(built, name)
        ]
        assert products == ([] if solver in (Identity, RankOne) else [3])
    paths = get_args(all_settings()["implicit_through"].type)
    assert [made("implicit", "nce", implicit_through=path).gradient_path for path in paths] == list(paths)
    nets = get_args(all_settings()["cost_net"].type)
    built = [type(made("infnet-plus", "margin", cost_net=net).cost_net).__name__.lower() for net in nets]
    assert built == list(nets)


def test_settings_that_are_searched_exist_and_have_a_range():
    ranges = {"score_weight", *(one.name for one in all_settings().values() if one.search)}
    for spec in METHODS.values():
        for loss in spec.losses:
            assert spec.searched(loss) <= ranges


def test_a_new_method_and_loss_need_only_a_spec():
    @dataclasses.dataclass(frozen=True)
    class Half(losses.Margin):
        name = "half"

        def cost(self, candidates, truth):
            return 0.5 * super().cost(candidates, truth)

    class Twice(methods.SEAL):
        pass

    rates = {"energy": "energy_lr", "task_net": "task_lr"}
    spec = methods.MethodSpec("twice", Twice, "seal again", named(Half), rates, ("task_dropout",))
    parts = methods.Parts(spec, spec.default_loss, Settings(energy_steps=2, **TINY), TASKS["labels"])
    method = spec.build(parts)
    assert type(method) is Twice
    assert isinstance(method.loss, Half)
    assert (method.energy_steps, method.task_steps) == (2, Settings().task_steps)
    assert parts.make(Twice, energy_steps=3).energy_steps == 3
    assert spec.searched("half") == {"energy_lr", "task_lr", "weight_decay", "task_dropout"}


def test_only_what_says_so_itself_can_be_stacked():
    stackable = {spec.name for spec in METHODS.values() if spec.method.stackable}
    assert stackable == {"cross-entropy", "seal", "implicit"}

    class Other(methods.SEAL):
        pass

    assert not Other.stackable


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
        ("perceptron", losses.Perceptron),
    ],
)
def test_seals_losses(name, kind):
    loss = made("seal", name, samples=7, perturb_std=0.3).loss
    assert type(loss) is kind
    if name not in ("margin", "regression", "perceptron"):
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


def test_networks_as_seals_authors_have_them():
    changes = {"output_bias": False, "last_layer_dropout": False, "global_bias": True}
    depth = {"task_layers": 3, "task_dropout": 0.4, "energy_layers": 2, "energy_dropout": 0.1}
    method = made("seal", "nce", **depth, **changes)
    kinds = [type(part).__name__ for part in method.task_net]
    layer = ["Linear", "Softplus", "Dropout"]
    assert kinds == ["InputLayer", "Softplus", "Dropout", *layer, "Linear", "Softplus", "Linear"]
    assert [type(part).__name__ for part in method.energy.encoder] == [
        "InputLayer", "Softplus", "Dropout", "Linear", "Softplus"
    ]  # fmt: skip
    assert method.task_net.head.bias is None
    assert method.task_net[3].bias is not None
    assert method.energy.terms[1].mixing.bias.shape == (3,)
    for net in (method.task_net, method.energy):
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any()
    first = method.task_net[3].weight  # Kaiming uniform: bounded by √(6 / inputs), a third of that squared
    bound = (6 / first.shape[1]) ** 0.5
    assert bound * 0.8 < first.abs().max() <= bound
    assert made("seal", "nce", **changes, task_layers=1).task_net[2].bias is None


def test_the_schedule_and_what_regression_teaches_reach_the_method():
    assert made("seal", "nce").schedule == made("infnet-plus", "margin").schedule == "nested"
    assert made("seal", "nce", schedule="grouped").schedule == "grouped"
    assert made("infnet-plus", "margin", schedule="grouped").schedule == "grouped"
    for method in ("infnet", "implicit"):  # whose papers have all of one network's steps first
        assert made(method, "margin", schedule="nested").schedule == "grouped"
    for loss in ("regression", "regression-s"):
        assert made("seal", loss).loss.term == "score"
        assert made("seal", loss, regression_term="energy").loss.term == "energy"
    assert made("seal-static", "regression", regression_term="energy").loss.term == "energy"
    assert type(made("seal", "margin").loss.score).__name__ == "F1"
    assert type(made("infnet-plus", "margin", margin_cost="manhattan").loss.score).__name__ == "Manhattan"


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


def test_inference_may_start_at_a_task_net():
    assert made("nce-energy", "nce", inference_start="task-net").predictors == ("energy", "noise_net")
    spen = made("spen", "margin", inference_start="task-net")
    assert spen.predictors == ("energy", "start_net")
    assert spen.inference.start == "net"
    assert [stage.name for stage in spen.stages()] == ["start net", "local energy", "energy"]
    assert made("spen", "margin", inference_start="net").start_net is None
    static = made("seal-static", "margin", inference_start="task-net")
    assert static.stages()[0].networks == ("start_net",)
    for names in (("dvn", "regression"), ("seal-static", "regression")):
        with pytest.raises(ValueError, match="DVN has no task net to start at; set inference_start to zeros"):
            made(*names, inference_start="task-net")


def test_the_same_seed_builds_the_same_networks():
    torch.manual_seed(3)
    one = made("seal", "nce").state_dict()
    torch.manual_seed(3)
    other = made("seal", "nce").state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("method", "loss", "message"),
    [
        ("seel", "nce", "no method 'seel'; did you mean seal. there are auto, cross-entropy, stack"),
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
