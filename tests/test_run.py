import dataclasses
import json
import math
import shutil
import signal
from functools import partial
from itertools import product

import pytest
import torch

import lossnet
import lossnet.run
from lossnet.data import MultiLabelData
from lossnet.decoding import Decision
from lossnet.files import write_json
from lossnet.loading import load as load_data
from lossnet.outputs.labels import DecodedLabels
from lossnet.own import OwnParts
from lossnet.run import Run, train
from lossnet.settings import Settings
from lossnet.training import CheckpointError, Interrupted
from lossnet.training.engines import Eager

SMALL = Settings(epochs=1, task_hidden=16, energy_hidden=16, global_hidden=8, samples=4, batch_size=100)
KEYS = {"dataset", "split", "method", "loss", "seed", "settings", "metrics", "seconds", "steps"}
METRICS = {"f1", "f1_tuned", "f1_expected", "threshold", "micro_f1", "macro_f1"}


@pytest.fixture(scope="module")
def digits():
    return load_data("digits-pairs")


def quick(output=None, method="seal", loss="", **options):
    options = {"settings": SMALL, "progress": False, "device": "cpu", **options}
    return Run("digits-pairs", method, loss, output=output, **options)


def test_what_a_run_leaves(tmp_path, digits):
    run = quick(tmp_path / "run", seed=4, settings=dataclasses.replace(SMALL, epochs=2))
    result = train(run, digits)
    written = json.loads((run.output / "result.json").read_text())
    assert written == json.loads(json.dumps(result))
    assert KEYS | {"versions", "commit"} <= set(written)
    assert set(written["metrics"]) == {"valid", "test"}
    for part in written["metrics"].values():
        assert set(part) >= METRICS
        assert all(0 <= value <= 1 and math.isfinite(value) for value in part.values())
    assert written["metrics"]["valid"]["threshold"] == written["metrics"]["test"]["threshold"]
    assert written["settings"] == dataclasses.asdict(run.settings)
    assert (written["dataset"], written["split"]) == ("digits-pairs", "fixed")
    assert (written["method"], written["loss"], written["seed"]) == ("seal", "nce", 4)
    assert written["steps"] == 2 * 18 * 2
    assert written["seconds"] > 0
    # A wheel's own version may leave out the build that it is ("+cu124").
    assert torch.__version__.startswith(written["versions"]["torch"])
    assert {"python", "numpy", "scipy", "lossnet"} <= set(written["versions"])
    assert written["commit"] is None or len(written["commit"]) == 40
    left = sorted(path.name for path in run.output.iterdir())
    assert left == ["history.jsonl", "model", "result.json"]
    history = [json.loads(line) for line in (run.output / "history.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in history] == [1, 2]
    assert history[written["best_epoch"] - 1]["f1"] == written["metrics"]["valid"]["f1"]


def test_the_saved_model_gives_the_reported_metrics(tmp_path, digits):
    result = train(quick(tmp_path / "run", "cross-entropy", "soft-f1"), digits)
    model = lossnet.load(tmp_path / "run")
    assert model.threshold == result["metrics"]["test"]["threshold"]
    for name, part in (("valid", digits.valid), ("test", digits.test)):
        assert DecodedLabels(model.decision).measure(*model.probabilities(part)) == result["metrics"][name]


def test_the_threshold_is_tuned_on_valid_and_helps_there(digits):
    metrics = train(quick(method="cross-entropy"), digits)["metrics"]
    assert metrics["valid"]["f1_tuned"] > metrics["valid"]["f1"]
    assert metrics["valid"]["threshold"] != 0.5


@pytest.mark.parametrize(
    ("method", "changes"),
    [("seal", {}), ("dvn", {}), ("dvn", {"inference_start": "noise", "inference_candidates": 2})],
)
def test_the_same_seed_gives_the_same_result(digits, method, changes):
    small = digits_part(digits)
    settings = dataclasses.replace(SMALL, inference_steps=3, **changes)
    torch.manual_seed(1)
    one = train(quick(method=method, settings=settings), small)
    torch.manual_seed(2)
    other = train(quick(method=method, settings=settings), small)
    assert one["metrics"] == other["metrics"]
    different = train(quick(method=method, settings=settings, seed=1), small)
    assert one["metrics"] != different["metrics"]


def digits_part(digits):
    return dataclasses.replace(
        digits,
        train=digits.train.take(range(300)),
        valid=digits.valid.take(range(100)),
        test=digits.test.take(range(100)),
    )


def test_a_run_leaves_the_global_generator_alone(digits):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    train(quick(), digits_part(digits))
    assert torch.equal(torch.rand(3), expected)


def test_without_an_output_nothing_is_written(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(quick(), digits_part(digits))
    assert list(tmp_path.iterdir()) == []


def test_without_test_rows_there_are_no_test_metrics(digits):
    part = digits_part(digits)
    result = train(quick(), dataclasses.replace(part, test=part.test.take([])))
    assert set(result["metrics"]) == {"valid"}


@pytest.mark.parametrize(
    ("method", "rates"),
    [
        ("seal", {"energy": 0.5, "task_net": 0.25}),
        ("nce-energy", {"energy": 0.5, "noise_net": 0.25}),
        ("spen", {"energy": 0.5, "local energy": 0.25, "start_net": 0.25}),
        ("infnet-plus", {"energy": 0.5, "task_net": 0.25, "cost_net": 0.25}),
    ],
)
def test_learning_rates_go_to_their_networks(digits, monkeypatch, method, rates):
    seen = {}

    class Stop(Exception):  # noqa: N818
        pass

    def spy(method, **options):
        seen.update(options)
        raise Stop

    monkeypatch.setattr(lossnet.run, "Trainer", spy)
    settings = dataclasses.replace(
        SMALL, energy_lr=0.5, task_lr=0.25, clip=3.0, patience=7, weight_decay=0.125
    )
    with pytest.raises(Stop):
        train(quick(method=method, settings=settings, seed=9), digits)
    assert seen["lr"] == rates
    wanted = {"clip": 3.0, "patience": 7, "weight_decay": 0.125, "seed": 9, "batch_size": 100}
    assert wanted.items() <= seen.items()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "seel"}, "no method 'seel'; did you mean seal"),
        ({"method": "seel", "loss": "nce"}, "no method 'seel'; did you mean seal"),
        ({"method": "dvn", "loss": "nce"}, "dvn has no loss 'nce'; it takes regression"),
        ({"device": "warp"}, "use cpu, cuda or auto"),
        ({"resume": True}, "resum"),
    ],
)
def test_bad_requests_are_value_errors(digits, options, message):
    with pytest.raises(ValueError, match=message):
        train(quick(**options), digits)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there(digits):
    with pytest.raises(ValueError, match="no CUDA device; use --device cpu"):
        train(quick(device="cuda"), digits)


# ---------------------------------------------------------------- resuming


def interrupted(run, digits, monkeypatch, epochs=1):
    """Runs until Ctrl-C comes in the batch after the first epochs."""
    original, calls = Eager.start_epoch, []

    def press(self, *arguments):
        calls.append(1)
        if len(calls) > epochs:
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Eager, "start_epoch", press)
        with pytest.raises(Interrupted):
            train(run, digits)


@pytest.fixture
def longer():
    return dataclasses.replace(SMALL, epochs=3)


def test_a_resumed_run_gives_the_same_result(tmp_path, digits, longer, monkeypatch):
    part = digits_part(digits)
    whole = train(quick(tmp_path / "whole", settings=longer), part)
    run = quick(tmp_path / "cut", settings=longer)
    interrupted(run, part, monkeypatch)
    resumed = train(dataclasses.replace(run, resume=True), part)
    for key in set(whole) - {"seconds"}:
        assert whole[key] == resumed[key], key
    files = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"loss": "ranking"},
        {"settings": {"task_lr": 0.5}},
        {"settings": {"energy_weight": 9.0}},
        {"settings": {"samples": 7}},
        {"settings": {"task_dropout": 0.4}},
    ],
)
def test_resuming_with_other_settings_is_refused(tmp_path, digits, longer, change, monkeypatch):
    """Else the result would carry settings that half of its training did not have."""
    part = digits_part(digits)
    run = quick(tmp_path / "cut", settings=longer)
    interrupted(run, part, monkeypatch)
    if "settings" in change:
        change = {"settings": dataclasses.replace(longer, **change["settings"])}
    with pytest.raises(CheckpointError, match="checkpoint"):
        train(dataclasses.replace(run, resume=True, **change), part)


def other_linear(inputs, outputs):
    return torch.nn.Linear(inputs, outputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": torch.optim.SGD}, "optimizer=Adam, resumed with optimizer=SGD"),
        ({"optimizer": None}, "optimizer=Adam, resumed with optimizer=None"),
        ({"scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=1)}, "scheduler=StepLR"),
        ({"own": OwnParts(task_net=other_linear)}, "task_net=Linear, resumed with task_net=other_linear"),
    ],
)
def test_resuming_with_other_parts_of_ones_own_is_refused(
    tmp_path, digits, longer, change, message, monkeypatch
):
    part = digits_part(digits)
    own = {"own": OwnParts(task_net=torch.nn.Linear), "optimizer": torch.optim.Adam}
    run = quick(tmp_path / "cut", settings=longer, **own)
    interrupted(run, part, monkeypatch)
    with pytest.raises(CheckpointError, match=message):
        train(dataclasses.replace(run, resume=True, **change), part)


@pytest.mark.parametrize("edited", [False, True])
def test_resuming_on_other_data_of_the_same_name_is_refused(tmp_path, longer, monkeypatch, edited):
    """The same file is the same wherever it lies; another one is not, even where the first one lay."""
    text = "a,b,l,m\n" + "".join(f"{i % 7},{i % 5},{i % 2},{i % 3 // 2}\n" for i in range(60))
    for folder, content in (("one", text), ("copy", text), ("other", text.replace("\n3,", "\n4,", 1))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.csv").write_text(content)
    run = quick(tmp_path / "cut", settings=longer, labels=["l", "m"])
    run = dataclasses.replace(run, data=str(tmp_path / "one" / "mine.csv"))
    interrupted(run, None, monkeypatch)
    other = dataclasses.replace(run, data=str(tmp_path / "other" / "mine.csv"), resume=True)
    if edited:
        shutil.copy(tmp_path / "other" / "mine.csv", tmp_path / "one" / "mine.csv")
        other = dataclasses.replace(run, resume=True)
    with pytest.raises(CheckpointError, match=r"saved with data_digest=.*use the same settings and data"):
        train(other)
    copy = dataclasses.replace(run, data=str(tmp_path / "copy" / "mine.csv"), resume=True)
    assert train(copy)["data_digest"]


# ---------------------------------------------------------------- small parts


def f1_of(chosen, row):
    return 2 * sum(a * b for a, b in zip(chosen, row, strict=True)) / max(sum(chosen) + sum(row), 1)


def worth(chosen, probabilities):
    """The expected F1 of a label set, by summing over all truths."""
    return sum(
        math.prod(p if unit else 1 - p for p, unit in zip(probabilities, row, strict=True))
        * f1_of(chosen, row)
        for row in product([0, 1], repeat=3)
    )


def test_each_decoder_has_its_own_column():
    probabilities = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.1, 0.05]])
    truth = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    metrics = DecodedLabels(Decision(0.2)).measure(probabilities, truth)
    assert metrics["f1"] == pytest.approx((2 / 3 + 0) / 2)
    assert metrics["f1_tuned"] == pytest.approx(1.0)
    assert metrics["threshold"] == 0.2
    best = [max(product([0, 1], repeat=3), key=lambda s, p=p: worth(s, p)) for p in probabilities.tolist()]
    reached = [f1_of(chosen, row) for chosen, row in zip(best, truth.tolist(), strict=True)]
    assert metrics["f1_expected"] == pytest.approx(sum(reached) / 2)
    assert metrics["f1_expected"] not in (metrics["f1"], metrics["f1_tuned"])
    assert metrics["micro_f1"] == pytest.approx(2 * 1 / (1 + 3))
    assert (metrics["exact_match"], metrics["exact_match_tuned"]) == (0, 1)


def test_json_is_replaced_atomically(tmp_path, monkeypatch):
    path = tmp_path / "new" / "result.json"
    write_json(path, {"a": 1})

    def fail(*arguments):
        raise OSError("no")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}


def test_test_rows_without_labels_do_not_cost_the_run(tmp_path, digits):
    """They are found out when all has been trained."""
    rows = digits.test
    bare = MultiLabelData(rows.x, rows.y * 0, rows.feature_names, rows.label_names)
    with pytest.warns(UserWarning, match="no test row has a label"):
        result = train(quick(tmp_path / "run"), dataclasses.replace(digits, test=bare))
    assert set(result["metrics"]) == {"valid"}
    assert lossnet.load(tmp_path / "run").label_names == digits.train.label_names


def test_a_folder_is_no_place_for_a_file(tmp_path):
    with pytest.raises(ValueError, match="is a folder; give the name of a file"):
        write_json(tmp_path / "", {})
    assert not list(tmp_path.parent.glob(f"{tmp_path.name}.*"))
