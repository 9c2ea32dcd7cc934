import dataclasses
import json
import warnings

import numpy as np
import pytest
import torch

import lossnet
from lossnet import auto
from lossnet.data import MultiLabelData
from lossnet.loading import Loaded
from lossnet.remarks import TrainingWarning
from lossnet.run import Run, fit, train
from lossnet.settings import Settings
from lossnet.training import Interrupted, NonFiniteLoss

SMALL = Settings(
    epochs=2, task_hidden=8, energy_hidden=8, global_hidden=4, samples=2, batch_size=64, patience_steps=0
)


def made(count=400, valid=250, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6)).astype("float32")
    data = MultiLabelData.from_arrays(x, (x[:, :3] + 0.3 * rng.normal(size=(count, 3)) > 0).astype(int))
    rows = np.arange(count)
    return Loaded.from_parts(data.take(rows[:-valid]), data.take(rows[-valid:]))


def run(**options):
    options = {"settings": SMALL, "progress": False, "device": "cpu", **options}
    return Run("made", "auto", "none", **options)


def fake(scores, seconds=0.0, calls=None, model=None):
    """A function that fits nothing: validation F1 by names of members."""

    class Told:
        """A model whose figures are told."""

        def __init__(self, data):
            self.task, self.decision = data.task, lossnet.decoding.Decision(goal="f1")

        def probabilities(self, data, device="cpu"):
            return torch.zeros(len(data), 3), None

        def save(self, folder):
            folder.mkdir(parents=True, exist_ok=True)

    def fit(member, data, weights):
        variant = "shallow" if member.settings.task_layers == 1 else ""
        name = auto.Member(member.method, member.loss, variant).name
        if calls is not None:
            calls.append((name, len(data.train), len(data.valid)))
        value = scores[name]
        if isinstance(value, Exception):
            raise value
        own = value.pop(0) if isinstance(value, list) else value
        for callback in member.callbacks or ():
            callback({})
        stages = [{"stage": "task net", "epochs": 1, "best_epoch": 1}]
        metrics = {"valid": {"f1_expected": own}}
        return lossnet.run.Fitted(Told(data), metrics, [{}], stages, [f"of {name}"], 1, seconds)

    return fit


@pytest.fixture
def unblended(monkeypatch):
    """Models whose figures are told cannot be averaged."""
    monkeypatch.setattr(auto._Contest, "blend", lambda contest: None)


SCORES = {
    "cross-entropy": 0.5,
    "cross-entropy, shallow": 0.6,
    "cross-entropy (soft-f1), shallow": 0.61,
    "stack, shallow": 0.7,
    "seal, shallow": 0.4,
    "implicit, shallow": 0.3,
}


@pytest.mark.usefixtures("unblended")
def test_the_best_on_validation_data_is_chosen_with_the_network_that_suits():
    calls = []
    with pytest.warns(TrainingWarning, match="of stack, shallow") as told:
        fitted = auto.choose(run(), made(), fake(SCORES, calls=calls))
    assert len(told) == 1
    assert [name for name, *_ in calls] == list(SCORES)
    choice = fitted.choice
    assert (choice["chosen"], choice["goal"], choice["metric"]) == ("stack, shallow", "f1", "f1_expected")
    assert {one["name"]: one["score"] for one in choice["candidates"]} == SCORES
    assert choice["candidates"][1]["settings"]["task_layers"] == 1
    assert choice["folds"] == 1
    json.dumps(choice)


@pytest.mark.usefixtures("unblended")
def test_few_validation_data_are_not_trusted():
    """Members are compared on five parts, and the order changes."""
    scores = {**SCORES, "stack, shallow": [0.7, 0.1, 0.1, 0.1, 0.1]}
    calls = []
    with pytest.warns(TrainingWarning):
        choice = auto.choose(run(), made(200, 50), fake(scores, calls=calls)).choice
    assert choice["chosen"] == "cross-entropy (soft-f1), shallow"
    assert choice["folds"] == 5
    again = calls[6:]
    best = sorted(SCORES, key=SCORES.get)[2:]
    assert sorted(name for name, *_ in again) == sorted(4 * best)
    assert all(train + valid == 200 and 30 < valid < 60 for _, train, valid in calls)
    found = {one["name"]: one for one in choice["candidates"]}
    assert found["stack, shallow"]["score"] == pytest.approx(0.22)
    assert found["stack, shallow"]["error"] == pytest.approx(0.12)
    assert found["seal, shallow"]["error"] is None


@pytest.mark.usefixtures("unblended")
def test_fewer_are_compared_where_time_is_short(monkeypatch):
    now = iter(range(10000))
    monkeypatch.setattr(auto.time, "monotonic", lambda: float(next(now)))
    calls = []
    with pytest.warns(TrainingWarning):
        choice = auto.choose(run(budget=0.5), made(200, 50), fake(SCORES, calls=calls)).choice
    counts = {one["name"]: len(one["scores"]) for one in choice["candidates"]}
    compared = [name for name, count in counts.items() if count > 1]
    assert set(compared) == set(sorted(SCORES, key=SCORES.get)[-3:])
    assert auto.sentence(choice).count("cross-entropy (soft-f1), shallow")


def test_parts_that_are_held_out_are_disjoint_and_complete():
    data = made(200, 50)
    seen = [fold for fold, _ in auto._folds(data, None, seed=0)]
    for fold in seen:
        both = np.concatenate([fold.train.x, fold.valid.x])
        whole = np.concatenate([data.train.x, data.valid.x])
        np.testing.assert_array_equal(both[np.lexsort(both.T)], whole[np.lexsort(whole.T)])
    held = np.concatenate([fold.valid.x for fold in seen])
    assert len(np.unique(held, axis=0)) == len(held)


def test_weights_go_with_their_rows():
    data = made(200, 50)
    weights = data.train.x[:, 0].astype(float)
    for fold, own in auto._folds(data, weights, seed=1):
        np.testing.assert_array_equal(own[:-50], fold.train.x[:-50, 0])
        assert (own[-50:] == 1).all()


@pytest.mark.usefixtures("unblended")
def test_what_diverges_is_left_out():
    scores = {**SCORES, "stack, shallow": NonFiniteLoss("loss nan")}
    with pytest.warns(TrainingWarning):
        choice = auto.choose(run(), made(), fake(scores)).choice
    assert choice["chosen"] == "cross-entropy (soft-f1), shallow"
    assert choice["skipped"] == [{"name": "stack, shallow", "why": "it diverged: loss nan"}]
    with pytest.raises(NonFiniteLoss, match="cross-entropy, shallow: it diverged"):
        auto.choose(run(), made(), fake(dict.fromkeys(SCORES, NonFiniteLoss("loss inf"))))


@pytest.mark.usefixtures("unblended")
def test_the_budget_ends_training_and_leaves_out_the_rest(monkeypatch):
    now = iter(range(0, 10000, 41))
    monkeypatch.setattr(auto.time, "monotonic", lambda: float(next(now)))
    with pytest.warns(TrainingWarning):
        choice = auto.choose(run(budget=2.0), made(), fake(SCORES)).choice
    assert [one["name"] for one in choice["candidates"]] == ["cross-entropy", "cross-entropy, shallow"]
    assert [one["cut"] for one in choice["candidates"]] == [False, True]
    assert [one["why"] for one in choice["skipped"]] == ["the budget was spent"] * 4


@pytest.mark.usefixtures("unblended")
def test_nothing_is_tried_where_nothing_can_be_better():
    calls = []
    scores = {**SCORES, "cross-entropy, shallow": 1.0}
    with pytest.warns(TrainingWarning):
        choice = auto.choose(run(), made(200, 50), fake(scores, calls=calls)).choice
    assert [name for name, *_ in calls] == ["cross-entropy", "cross-entropy, shallow"]
    assert (choice["chosen"], choice["folds"]) == ("cross-entropy, shallow", 1)
    why = "cross-entropy, shallow predicts validation data without a mistake"
    assert [one["why"] for one in choice["skipped"]] == [why] * 4


def test_settings_of_the_users_stay_and_equal_networks_are_tried_once():
    networks, _ = auto.portfolio(run(settings=dataclasses.replace(SMALL, task_layers=3)), made())
    settings = [
        member.run(run(settings=dataclasses.replace(SMALL, task_layers=3))).settings for member in networks
    ]
    assert [one.task_layers for one in settings] == [3, 3]
    assert [one.task_dropout for one in settings] == [0.2, 0.5]
    both = dataclasses.replace(SMALL, task_layers=3, task_dropout=0.3)
    assert len(auto.portfolio(run(settings=both), made())[0]) == 1


def test_a_lower_loss_is_better():
    choice = {
        "chosen": "a",
        "metric": "hamming_loss_tuned",
        "folds": 5,
        "candidates": [
            {"name": name, "scores": 5 * [score]} for name, score in [("c", 0.3), ("a", 0.1), ("b", 0.2)]
        ],
    }
    assert auto.sentence(choice).endswith("0.1000 on 5 held-out parts; next is b with 0.2000")


def quiet(run, data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        return train(run, data)


@pytest.mark.parametrize("valid", [250, 60])
def test_the_best_members_are_averaged(tmp_path, monkeypatch, valid):
    """The blend is a model like any other: measured, saved, loaded; it averages calibrated probabilities."""
    monkeypatch.setattr(auto._Contest, "best", lambda contest: contest.blended or contest.trials[0])
    seen = []
    make = lossnet.Model.blend
    monkeypatch.setattr(
        lossnet.Model, "blend", lambda models, settings: seen.extend(models) or make(models, settings)
    )
    data = made(400 if valid == 250 else 200, valid)
    result = quiet(run(output=tmp_path / "run"), data)
    (blend,) = (one for one in result["choice"]["candidates"] if one["name"] == "blend")
    assert result["choice"]["chosen"] == "blend"
    assert len(blend["members"]) == len(seen) == 3
    assert len(blend["scores"]) == (1 if valid == 250 else 5)
    assert result["stages"][0]["stage"].split(":")[0] == blend["members"][0]
    ranked = sorted(result["choice"]["candidates"][:-1], key=lambda one: -one["score"])
    assert blend["members"] == [one["name"] for one in ranked[:3]]
    model = lossnet.load(tmp_path / "run")
    assert model.names == ("blend", "none")
    x = data.valid.x
    mean = np.mean([one.predict_proba(x) for one in seen], axis=0)
    wanted = model.calibration(model.method.space, torch.from_numpy(mean)).numpy()
    np.testing.assert_allclose(model.predict_proba(x), wanted, atol=1e-6)
    measured = model.measure(data.valid)
    assert measured["f1_expected"] == pytest.approx(result["metrics"]["valid"]["f1_expected"])
    assert model.method.feed_forward
    assert not [name for name in model.method.state_dict() if "energy" in name]


@pytest.mark.parametrize(
    ("member", "blend", "chosen"),
    [
        ([0.6], [0.5], "member"),
        ([0.5], [0.5], "member"),
        ([0.4], [0.5], "blend"),
        ([0.6, 0.5, 0.4], [0.5, 0.5, 0.44], "blend"),
        ([0.6, 0.6, 0.6], [0.5, 0.5, 0.55], "member"),
        ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5], "member"),
    ],
)
def test_the_blend_is_preferred_where_parts_of_the_data_disagree(member, blend, chosen):
    data = made()
    fitted = fake({"cross-entropy": 0.5})(dataclasses.replace(run(), method="cross-entropy"), data, None)
    contest = auto._Contest(run(goal="f1"), data, None, None)
    contest.trials = [auto._Trial(auto.Member("cross-entropy", "none"), member, fitted, 1.0)]
    contest.blended = auto._Trial(auto.Member("blend", "none"), blend, fitted, 1.0, blended=("a", "b"))
    assert contest.best() is (contest.trials[0] if chosen == "member" else contest.blended)


def test_a_run_of_auto_is_a_run(tmp_path):
    result = quiet(run(output=tmp_path / "run"), made())
    assert (result["method"], result["goal"]) == ("auto", "f1")
    chosen = result["choice"]["chosen"]
    (best,) = (one for one in result["choice"]["candidates"] if one["name"] == chosen)
    assert best["metrics"] == result["metrics"]
    assert best["score"] == max(one["score"] for one in result["choice"]["candidates"])
    assert not (tmp_path / "run" / "candidates").exists()
    model = lossnet.load(tmp_path / "run")
    assert model.names == (best["method"], best["loss"])
    assert model.decision.goal == "f1"


def test_a_run_that_was_stopped_goes_on(tmp_path):
    """Members that have ended are not trained again, and the one that was not goes on from its epoch."""
    data, stops = made(), []

    def stop(entry):
        stops.append(entry["epoch"])
        if len(stops) == 4:  # in the second member
            raise Interrupted("stopped", None)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        whole = fit(run(), data).choice
        with pytest.raises(Interrupted):
            train(run(output=tmp_path / "run", callbacks=[stop]), data)
        assert (tmp_path / "run" / "candidates" / "cross-entropy" / "trial.json").exists()
        with pytest.raises(ValueError, match="interrupted run"):
            lossnet.run.check_unused(tmp_path / "run", resume=False)
        counted = []
        again = run(output=tmp_path / "run", resume=True, callbacks=[counted.append])
        result = train(again, data)
    assert len(counted) < 2 * 2 * len(whole["candidates"]) - 2
    for one, other in zip(result["choice"]["candidates"], whole["candidates"], strict=True):
        assert one["metrics"] == other["metrics"]
    folder = tmp_path / "other" / "candidates" / "cross-entropy"
    folder.mkdir(parents=True)
    (folder / "trial.json").write_text(json.dumps({"identity": {}}))
    with pytest.raises(ValueError, match="other settings or data"):
        train(run(output=tmp_path / "other", resume=True), data)


def test_estimators_choose_by_default():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    small = {"epochs": 2, "task_hidden": 8, "energy_hidden": 8, "samples": 2, "patience_steps": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        found = lossnet.MultiLabelClassifier(random_state=0, **small).fit(x, (x[:, :2] > 0).astype(int))
    assert found.method == "auto"
    assert found.choice_["chosen"] in [one["name"] for one in found.choice_["candidates"]]
    assert found.predict(x).shape == (120, 2)
    one = lossnet.MultiLabelClassifier(method="cross-entropy", **small).fit(x, (x[:, :2] > 0).astype(int))
    assert one.choice_ is None


def test_parts_by_hand_are_used_or_refused():
    net = torch.nn.Linear(6, 3)
    own = lossnet.own.OwnParts(net)
    networks, others = auto.portfolio(run(own=own), made())
    assert [one.name for one in networks] == ["cross-entropy"]
    assert "stack" in [one.name for one in others]
    with pytest.raises(ValueError, match="use method seal"):
        auto.choose(run(own=lossnet.own.OwnParts(None, torch.nn.Linear(2, 2))), made(), fake(SCORES))
