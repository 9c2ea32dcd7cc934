import contextlib
import csv
import dataclasses
import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from argparse import Namespace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

import lossnet
import lossnet.report
import lossnet.run
from lossnet import cli
from lossnet.build import METHODS
from lossnet.cli import commands, main
from lossnet.data import names as dataset_names
from lossnet.data.readers import stream_inputs
from lossnet.decoding import Decision, ExpectedF1
from lossnet.outputs import Labels
from lossnet.settings import GROUPS, Settings
from lossnet.training import Interrupted, NonFiniteLoss, Trainer
from lossnet.training.engines import Eager

TINY = ["--task-hidden", "8", "--energy-hidden", "8", "--global-hidden", "4", "--samples", "4"]
TINY += ["--quiet", "--device", "cpu"]
FEATURES = ("length", "width", "height", "age")


@pytest.fixture(autouse=True)
def _nothing_from_this_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("LOSSNET_DATA", raising=False)
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.setenv("COLUMNS", "200")


def rows(count, seed=0, scale=1.0):
    x = np.random.default_rng(seed).normal(size=(count, 4)).round(3) * scale
    y = np.stack([x[:, 0] > 0, x[:, 1] + x[:, 2] > 0, x[:, 3] <= 0.2], 1).astype(int)
    y[:, 2] |= ~y.any(1)
    return x, y


LABELS = ("label_a", "label_b", "label_c")


def write_csv(path, x, y=None, labels=LABELS):
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*FEATURES, *(labels if y is not None else ())])
        writer.writerows(
            [*map(repr, map(float, row)), *(map(int, y[i]) if y is not None else ())]
            for i, row in enumerate(x)
        )
    return path


def write_arff(path, x, y, labels=LABELS):
    lines = ["@relation mine"]
    lines += [f"@attribute {name} numeric" for name in FEATURES]
    lines += [f"@attribute {name} {{0,1}}" for name in labels]
    lines += ["@data"]
    lines += [",".join([*map(repr, map(float, a)), *map(str, b)]) for a, b in zip(x, y, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    tags = "\n".join(f'<label name="{name}"></label>' for name in labels)
    xml = f'<?xml version="1.0"?>\n<labels xmlns="http://mulan.sourceforge.net/labels">\n{tags}\n</labels>'
    path.with_suffix(".xml").write_text(xml)
    return path


@pytest.fixture
def table(tmp_path):
    return write_csv(tmp_path / "mine.csv", *rows(90))


@pytest.fixture
def trained(table, tmp_path, capsys):
    command = ["train", str(table), "--labels", "label_*", "--epochs", "3", "--task-lr", "0.01"]
    assert main([*command, *TINY, "--method", "seal", "--output", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    return tmp_path / "run"


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def failed(arguments, capsys, status=2):
    """The one message of a command that must fail in a civilised way."""
    try:
        code = main([str(part) for part in arguments])
    except SystemExit as stop:  # the parser's own complaints
        code = stop.code
    output = capsys.readouterr()
    assert code == status, output.err
    assert "Traceback" not in output.err
    assert output.err.strip()
    return output.err


# ---------------------------------------------------------------- train


def test_train_on_embedded_data(tmp_path, capsys):
    output = tmp_path / "runs" / "d0"
    command = ["train", "digits-pairs", "--method", "cross-entropy", "--epochs", "1"]
    assert main([*command, "--seed", "3", *TINY, "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "digits-pairs, cross-entropy, seed 3" in shown
    assert re.findall(r"→ (\w+)", shown) == ["f1_tuned", "is"]
    result = result_of(output)
    keys = {"dataset", "split", "method", "loss", "seed", "settings", "metrics", "seconds"}
    assert keys | {"steps", "versions", "commit"} <= set(result)
    for part in ("valid", "test"):
        wanted = {"f1", "f1_tuned", "f1_expected", "threshold", "micro_f1", "macro_f1"}
        assert wanted <= set(result["metrics"][part])
        for name in wanted:
            assert f"{result['metrics'][part][name]:.4f}" in shown
    assert (result["dataset"], result["method"], result["seed"]) == (
        "digits-pairs",
        "cross-entropy",
        3,
    )
    assert str(output) in shown.replace("\n", "")
    assert f"the report is in {output / 'report.html'}" in shown.replace("\n", "")
    assert sorted(path.name for path in output.iterdir()) == [
        "history.jsonl",
        "model",
        "report.html",
        "result.json",
    ]
    assert "digits-pairs" in (output / "report.html").read_text(encoding="utf-8")
    assert (output / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("error", [RuntimeError("no ink"), KeyboardInterrupt()])
def test_a_page_that_fails_leaves_the_run_complete_and_can_be_tried_again(
    tmp_path, capsys, monkeypatch, error
):
    output, data = tmp_path / "a run", tmp_path / "my data"

    def fail(*arguments, **options):
        raise error

    options = ["--method", "cross-entropy", "--epochs", "1", *TINY, "--data-dir", str(data)]
    with monkeypatch.context() as patch:
        patch.setattr(lossnet.report, "write", fail)
        assert main(["train", "digits-pairs", *options, "--output", str(output)]) == 0
    assert lossnet.load(output)
    said = capsys.readouterr().err
    assert "the run is complete" in said
    assert ("no ink" if isinstance(error, RuntimeError) else "stopped") in said
    command, *arguments = shlex.split(said.splitlines()[-1].partition("to try again: ")[2])
    assert (command, arguments) == ("lossnet", ["report", str(output), "--data-dir", str(data)])
    assert main(arguments) == 0
    assert (output / "report.html").is_file()


def test_train_on_ones_own_table(trained):
    result = result_of(trained)
    assert result["dataset"] == "mine.csv"
    assert result["split"] == "stratified(seed=0)"
    model = lossnet.load(trained)
    assert model.label_names == ("label_a", "label_b", "label_c")
    assert model.feature_names == ("length", "width", "height", "age")
    assert result["epochs"] == 3


def test_train_with_ones_own_split(table, tmp_path, capsys):
    split = tmp_path / "cut.json"
    parts = {"train": list(range(60)), "valid": list(range(60, 75)), "test": list(range(75, 90))}
    split.write_text(json.dumps(parts))
    command = ["train", str(table), "--labels", "label_a", "label_b", "label_c", "--epochs", "1"]
    output = tmp_path / "run"
    assert main([*command, "--split", str(split), *TINY, "--output", str(output)]) == 0
    assert result_of(output)["split"] == "cut.json"
    assert result_of(output)["steps"] == 2 * 10  # batches of 6
    capsys.readouterr()


def test_a_result_is_not_overwritten(trained, table, capsys):
    before = (trained / "result.json").read_bytes()
    message = failed(["train", table, "--labels", "label_*", *TINY, "--output", trained], capsys)
    assert f"{trained} already holds a result" in message
    assert (trained / "result.json").read_bytes() == before


@pytest.fixture
def captured(monkeypatch):
    """The runs that the command line asks for, none of which is run."""
    runs = []

    def train(run):
        runs.append(run)
        metrics = {"valid": {"f1": 0.5}}
        names = {"dataset": run.data, "method": run.method, "loss": run.loss, "seed": run.seed}
        result = {**names, "metrics": metrics, "steps": 1, "seconds": 1.0, "split": "none", "stages": []}
        model = Namespace(task=Namespace(output=Labels.of_size(1)), decision=Decision())
        return result, model, Namespace(origin=None)

    monkeypatch.setattr(lossnet.run, "carry_out", train)
    return runs


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    folder = tmp_path / "recipes"
    folder.mkdir()
    monkeypatch.setattr("lossnet.recipes.recipe_folder", lambda: folder)
    (folder / "mine").mkdir()
    (folder / "mine" / "seal-nce.yaml").write_text("samples: 11\nepochs: 12\nenergy_lr: 1e-05\n")
    (folder / "mine" / "seal.yaml").write_text("samples: 21\n")
    (folder / "other.yaml").write_text("samples: 31\nconditioned: true\n")
    return folder


def test_a_flag_beats_the_recipe_beats_the_default(captured, recipes, tmp_path):
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text("inference_start: net\nsamples: 41\n")
    commands = [
        (["train", "mine"], {"samples": 11, "epochs": 12, "energy_lr": 1e-5}),
        (["train", "mine", "--samples", "3"], {"samples": 3, "epochs": 12, "energy_lr": 1e-5}),
        (
            ["train", "mine", "--samples=3", "--energy-lr=2"],
            {"samples": 3, "epochs": 12, "energy_lr": 2.0},
        ),
        (["train", "mine", "--loss", "margin"], {"samples": 21}),
        (["train", "mine", "--loss", "margin", "--samples", "20"], {"samples": 20}),
        (["train", "mine", "--method", "dvn"], {}),
        (["train", "yours"], {}),
        (["train", "mine", "--recipe", "other"], {"samples": 31, "conditioned": True}),
        (["train", "mine", "--recipe", "other", "--conditioned", "false"], {"samples": 31}),
        (["train", "mine", "--recipe", str(elsewhere)], {"samples": 41, "inference_start": "net"}),
        # A flag that says the default is a flag all the same.
        (["train", "mine", "--epochs", "100"], {"samples": 11, "energy_lr": 1e-5}),
    ]
    for command, changes in commands:
        method = [] if "--method" in command or "other" in command else ["--method", "seal"]
        assert main([*command, *method]) == 0
        assert captured[-1].settings == dataclasses.replace(Settings(), **changes), command


def test_a_data_sets_own_recipe_is_the_default(captured):
    assert main(["train", "bibtex", "--method", "seal"]) == 0
    assert captured[-1].settings.energy_steps == 12
    assert captured[-1].settings.energy_weight == 5.515
    assert main(["train", "bibtex", "--method", "cross-entropy", "--loss", "soft-f1"]) == 0
    assert captured[-1].settings.energy_steps == 1
    assert (captured[-1].method, captured[-1].loss) == ("cross-entropy", "soft-f1")


def test_every_flag_arrives(captured, tmp_path):
    command = ["train", "d", "--method", "infnet", "--loss", "perceptron", "--seed", "7"]
    command += ["--output", "o", "--data-dir", "e", "--split", "s", "--labels", "a", "b*"]
    command += ["--device", "cpu", "--resume", "--quiet", "--clip", "2.5"]
    assert main(command) == 0
    run = captured[-1]
    assert (run.data, run.method, run.loss, run.seed) == ("d", "infnet", "perceptron", 7)
    assert (str(run.output), str(run.data_dir), str(run.split)) == ("o", "e", "s")
    assert list(run.labels) == ["a", "b*"]
    assert (run.device, run.resume, run.progress) == ("cpu", True, False)
    assert run.settings == dataclasses.replace(Settings(), clip=2.5)


def test_lr_sets_all_learning_rates_that_are_not_given_themselves(captured, recipes):
    for flags, rates in (
        (["--lr", "0.5"], (0.5, 0.5)),
        (["--lr", "0.5", "--energy-lr", "0.25"], (0.5, 0.25)),
        (["--task-lr", "0.25", "--lr", "0.5"], (0.25, 0.5)),
        ([], (0.001, 1e-5)),  # the recipe's
    ):
        assert main(["train", "mine", "--method", "seal", *flags]) == 0
        assert (captured[-1].settings.task_lr, captured[-1].settings.energy_lr) == rates


def test_flags_of_data_arrive(captured):
    flags = ["--goal", "micro-f1", "--valid", "v.csv", "--test", "t.csv", "--encoding", "latin-1"]
    assert main(["train", "d.csv", *flags]) == 0
    run = captured[-1]
    assert (run.goal, str(run.valid), str(run.test), run.encoding) == (
        "micro-f1",
        "v.csv",
        "t.csv",
        "latin-1",
    )


def test_there_is_a_flag_for_every_setting(captured):
    for field in dataclasses.fields(Settings):
        value = {"conditioned": "true", "inference_update": "gradient", "inference_start": "net"}
        value |= {"inference_optimizer": "adam", "task_dropout": "0.7", "energy_dropout": "0.7"}
        value |= {
            "plateau_factor": "0.7",
            "patches": "0.7",
            "teacher_decay": "0.7",
            "teacher_power": "0.7",
            "implicit_through": "prediction",
            "solver": "neumann",
        }
        value |= {"image_net": "unet", "image_energy": "unet", "flips": "true", "noise": "blocks"}
        value |= {"implicit_every": "1", "cost_net": "shared", "zero_truncation": "true"}
        value |= {"tag_models": "words", "tune_embeddings": "true", "patches": "0.7"}
        value |= {"energy_limits": "false", "last_layer_dropout": "false", "output_bias": "false"}
        value |= {"global_bias": "true", "schedule": "grouped", "regression_term": "energy"}
        value |= {"margin_cost": "manhattan", "conditional": "auto", "lr_decay": "linear"}
        value |= {"energy_words": "false", "word_dropout": "0.7"}
        given = value.get(field.name, "3")
        assert main(["train", "d", "--" + field.name.replace("_", "-"), given]) == 0
        assert getattr(captured[-1].settings, field.name) != field.default


def test_rules_and_few_labels(captured, tmp_path):
    rules = tmp_path / "rules.py"
    rules.write_text("from lossnet.energies import exactly\npair = exactly(2)")
    given = ["--method", "rules", "--rules", str(rules), "--labelled", "10"]
    assert main(["train", "digits-pairs", *given]) == 0
    assert captured[-1].labelled == 10
    assert [rule.name for rule in captured[-1].own.rules] == ["exactly(2)"]


# ---------------------------------------------------------------- evaluate and predict


def test_evaluate_gives_what_training_reported(tmp_path, capsys):
    run = tmp_path / "run"
    command = [
        "train",
        "digits-pairs",
        "--method",
        "dvn",
        "--epochs",
        "1",
        "--inference-steps",
        "3",
    ]
    assert main([*command, "--batch-size", "200", *TINY, "--output", str(run)]) == 0
    capsys.readouterr()
    answer = tmp_path / "metrics.json"
    assert main(["evaluate", str(run), "digits-pairs", "--output", str(answer)]) == 0
    assert json.loads(answer.read_text())["metrics"] == result_of(run)["metrics"]
    assert f"{result_of(run)['metrics']['test']['f1']:.4f}" in capsys.readouterr().out


def test_evaluate_on_a_file_applies_the_models_preprocessing(trained, tmp_path, capsys):
    x, y = rows(40, seed=8)
    file = write_csv(tmp_path / "new.csv", x, y)
    answer = tmp_path / "metrics.json"
    assert main(["evaluate", str(trained / "model"), str(file), "--output", str(answer)]) == 0
    (metrics,) = json.loads(answer.read_text())["metrics"].values()
    model = lossnet.load(trained)
    chosen = model.predict_proba(x) >= 0.5
    labelled = y.any(1)
    f1 = 2 * (chosen & (y > 0)).sum(1) / (chosen.sum(1) + y.sum(1))
    assert metrics["f1"] == pytest.approx(f1[labelled].mean(), rel=1e-5)
    assert metrics["threshold"] == model.threshold
    capsys.readouterr()


@pytest.fixture
def emotions(tmp_path):
    """A data folder in which the (standardised) set "emotions" is a small one of ours."""
    folder = tmp_path / "data" / "emotions"
    folder.mkdir(parents=True)
    x, y = rows(90)
    x[45:] = 40 * x[45:] + 100  # so that it matters on which rows a preprocessor was fitted
    write_arff(folder / "emotions.arff", x, y)
    cut = {"train": list(range(40)), "valid": list(range(45, 70)), "test": list(range(70, 90))}
    (folder / "split.json").write_text(json.dumps(cut))
    return folder.parent


def test_evaluate_with_another_split_keeps_the_models_preprocessing(emotions, tmp_path, capsys):
    run, answer, split = tmp_path / "run", tmp_path / "metrics.json", tmp_path / "other.json"
    common = ["--data-dir", str(emotions)]
    command = ["train", "emotions", *common, "--method", "cross-entropy", "--epochs", "2"]
    assert main([*command, *TINY, "--output", str(run)]) == 0
    assert main(["evaluate", str(run), "emotions", *common, "--output", str(answer)]) == 0
    assert json.loads(answer.read_text())["metrics"] == result_of(run)["metrics"]
    # The same test rows, while the training rows are others.
    parts = {"train": list(range(45, 70)), "valid": list(range(40)), "test": list(range(70, 90))}
    split.write_text(json.dumps(parts))
    more = ["--split", str(split), "--output", str(answer)]
    assert main(["evaluate", str(run), "emotions", *common, *more]) == 0
    found = json.loads(answer.read_text())["metrics"]["test"]
    assert found == result_of(run)["metrics"]["test"]
    capsys.readouterr()


@pytest.mark.parametrize("decode", ["tuned", "0.5", "expected-f1"])
@pytest.mark.parametrize("kind", ["csv", "csv without labels", "arff"])
def test_predict_gives_names_and_probabilities(trained, tmp_path, kind, decode):
    x, y = rows(30, seed=8)
    if kind == "arff":
        file = write_arff(tmp_path / "input.arff", x, y)
    else:
        file = write_csv(tmp_path / "input.csv", x, y if kind == "csv" else None)
    out = tmp_path / "deep" / "out.csv"
    command = ["predict", str(trained), str(file), "-o", str(out)]
    assert main([*command, *([] if decode == "tuned" else ["--decode", decode])]) == 0
    with out.open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert list(table[0]) == ["row", "labels", *LABELS]
    assert [int(row["row"]) for row in table] == list(range(30))
    model = lossnet.load(trained)
    probabilities = model.predict_proba(x)
    found = np.array([[float(row[name]) for name in LABELS] for row in table])
    np.testing.assert_allclose(found, probabilities, rtol=1e-5)
    expected = {
        "tuned": probabilities >= model.threshold,
        "0.5": probabilities >= 0.5,
        "expected-f1": ExpectedF1()(torch.from_numpy(probabilities)).numpy() > 0,
    }[decode]
    chosen = [set(filter(None, row["labels"].split(";"))) for row in table]
    assert chosen == [{LABELS[i] for i in np.flatnonzero(row)} for row in expected]


def test_predict_keeps_columns_of_the_input(trained, tmp_path, capsys, monkeypatch):
    # The inputs are read in parts of other sizes than the columns that are kept.
    monkeypatch.setattr("lossnet.inputs.features.stream_inputs", partial(stream_inputs, rows=7))
    monkeypatch.setattr("lossnet.stream.ROWS", 5)
    x, _ = rows(30, seed=8)
    plain = write_csv(tmp_path / "plain.csv", x)
    lines = plain.read_text().splitlines()
    named = tmp_path / "named.csv"
    ids = ["id", *(f"00{number}" for number in range(30))]
    titles = ["title", *('"a, b"' for _ in range(30))]
    named.write_text("".join(f"{a},{b},{c}\n" for a, b, c in zip(ids, lines, titles, strict=True)))
    outputs = tmp_path / "plain-out.csv", tmp_path / "out.csv"
    assert main(["predict", str(trained), str(plain), "-o", str(outputs[0])]) == 0
    command = ["predict", str(trained), str(named), "-o", str(outputs[1]), "--keep", "title", "id"]
    assert main(command) == 0
    without, kept = ([*csv.reader(path.read_text().splitlines())] for path in outputs)
    assert kept[0] == ["row", "title", "id", "labels", *LABELS]
    assert [row[1:3] for row in kept[1:]] == [["a, b", name] for name in ids[1:]]
    assert [[row[0], *row[3:]] for row in kept] == without


def test_parquet_columns_are_kept_as_they_are(trained, tmp_path, capsys):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    x, _ = rows(3, seed=8)
    columns = dict(zip(FEATURES, x.T.tolist(), strict=True))
    columns |= {"id": [2**60 + 1, None, 7], "when": ["a, b", "", "c"]}
    parquet.write_table(arrow.table(columns), tmp_path / "new.parquet")
    assert main(["predict", str(trained), str(tmp_path / "new.parquet"), "--keep", "id", "when"]) == 0
    _, *lines = csv.reader(capsys.readouterr().out.splitlines())
    assert [line[:3] for line in lines] == [["0", str(2**60 + 1), "a, b"], ["1", "", ""], ["2", "7", "c"]]
    assert "did you mean when" in failed(
        ["predict", trained, tmp_path / "new.parquet", "--keep", "wen"], capsys
    )


def test_columns_that_cannot_be_kept(trained, tmp_path, capsys):
    x, y = rows(5, seed=8)
    file, arff = write_csv(tmp_path / "new.csv", x, y), write_arff(tmp_path / "new.arff", x, y)
    for given, message in (
        ([file, "--keep", "lenth"], "there is no column 'lenth'; did you mean length?"),
        ([file, "--keep", "label_a"], "the column 'label_a' to keep is called like one of the predictions"),
        ([file, "--keep", "age", "age"], "a column is given twice"),
        ([arff, "--keep", "age"], "CSV, TSV and Parquet files have columns; leave --keep out"),
        (["--text", "hello", "--keep", "age"], "are for a file, not for --text"),
    ):
        assert message in failed(["predict", trained, *given], capsys)


def test_other_encodings_are_read_in_parts_too(trained, tmp_path, capsys):
    x, y = rows(5, seed=8)
    file = write_csv(tmp_path / "new.csv", x, y)
    file.write_bytes(
        file.read_bytes().replace(b"length,width", b"length,width,K\xf6ln").replace(b"\r\n", b"\n")
    )
    lines = file.read_bytes().split(b"\n")
    lines[1:-1] = [b",".join((*line.split(b",")[:2], b"\xe4", *line.split(b",")[2:])) for line in lines[1:-1]]
    file.write_bytes(b"\n".join(lines))
    assert "--encoding latin-1" in failed(["predict", trained, file], capsys)
    assert "--encoding latin-1" in failed(["evaluate", trained, file], capsys)
    for command in (["predict", "--keep", "Köln"], ["evaluate"]):
        name, *more = command
        assert main([name, str(trained), str(file), "--encoding", "latin-1", *more]) == 0
    assert "ä" in capsys.readouterr().out


@pytest.mark.parametrize("goal", ["F1", "iou"])
def test_a_goal_that_does_not_exist_is_refused_before_training(capsys, goal):
    assert main(["train", "digits-pairs", "--goal", goal]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"labels cannot be predicted for '{goal}'" in line


def test_a_goal_is_kept_in_the_result_and_the_model(table, tmp_path, capsys):
    command = ["train", str(table), "--labels", "label_*", "--epochs", "2", "--goal", "hamming", *TINY]
    assert main([*command, "--output", str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "→ hamming_loss_tuned" in shown
    assert "→ is how it predicts: for the goal hamming, decoded by tuned" in shown
    assert result_of(tmp_path / "run")["goal"] == "hamming"
    assert lossnet.load(tmp_path / "run").decision.goal == "hamming"


@pytest.mark.parametrize("folder", [False, True])
def test_rows_of_files_that_test_can_be_read_again(tmp_path, capsys, folder):
    data = tmp_path / "data"
    data.mkdir()
    for name, count, seed in (("train", 60, 0), ("val", 20, 1), ("test", 30, 2)):
        write_csv(data / f"{name}.csv", *rows(count, seed))
    given = (
        [data] if folder else [data / "train.csv", "--valid", data / "val.csv", "--test", data / "test.csv"]
    )
    output = tmp_path / "run"
    command = ["train", *given, "--labels", "label_*", "--epochs", "3", "--no-report", *TINY]
    assert main([*map(str, command), "--output", str(output)]) == 0
    assert result_of(output)["split"] == "files"
    assert main(["report", str(output)]) == 0
    assert (output / "report.html").is_file()
    answer = tmp_path / "metrics.json"
    for source, parts in ((data, ("valid", "test")), (data / "test.csv", ("all rows",))):
        assert main(["evaluate", str(output), str(source), "--output", str(answer)]) == 0
        metrics = json.loads(answer.read_text())["metrics"]
        assert tuple(metrics) == parts
        assert metrics[parts[-1]] == pytest.approx(result_of(output)["metrics"]["test"], rel=1e-5)
    capsys.readouterr()


def test_predict_prints_without_an_output_file(trained, table, capsys):
    assert main(["predict", str(trained), str(table)]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == "row,labels,label_a,label_b,label_c"
    assert len(shown.splitlines()) == 91


# ---------------------------------------------------------------- data, methods, help


def test_data_list_names_every_set(capsys):
    assert main(["data", "list"]) == 0
    shown = capsys.readouterr().out
    lines = {name: line for name in dataset_names() for line in shown.splitlines() if f" {name} " in line}
    assert set(lines) == set(dataset_names())
    assert "yes" in lines["digits-pairs"]
    assert "no" in lines["bibtex"]


def test_data_list_looks_in_the_data_folder(emotions, capsys):
    assert main(["data", "list", "--data-dir", str(emotions)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if " emotions " in line)
    assert "yes" in line


def test_data_show_counts(capsys):
    assert main(["data", "show", "digits-pairs"]) == 0
    shown = capsys.readouterr().out
    for part in ("1800", "600", "64", "10", "digit_0", "fixed"):
        assert part in shown


def test_data_show_describes_ones_own_file(tmp_path, capsys):
    labels = ("label_[red]", "label_b", "label_c")
    file = write_csv(tmp_path / "mine.csv", *rows(60), labels=labels)
    assert main(["data", "show", str(file), "--labels", "label_*"]) == 0
    shown = capsys.readouterr().out
    assert "label_b (" in shown
    assert "label_[red] (" in shown, "names are no markup"
    assert not {"home", "terms"} & set(shown.split()), "nobody has said"


def test_methods_lists_methods_and_losses(capsys):
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    for name, entry in METHODS.items():
        assert name in shown
        assert all(loss in shown for loss in entry.losses)


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert lossnet.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "tune", "evaluate", "predict", "export", "data", "methods"])
def test_the_help_of_each_command_shows_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"  lossnet {command}" in shown.split("example", 1)[-1]
    assert "example" in shown


def helped(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    shown = capsys.readouterr()
    assert stop.value.code == 0, shown.err
    return shown.out


@pytest.mark.parametrize("command", ["train", "tune"])
def test_the_short_help_has_what_newcomers_need_and_names_the_groups(command, capsys):
    shown = helped(capsys, command, "--help")
    flags = set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE))
    needed = {"--labels", "--words", "--goal", "--method", "--loss", "--output", "--seed", "--epochs", "--lr"}
    needed |= {"--test", "--valid", "--split", "--data-dir", "--quiet", "--text", "--encoder"}
    needed |= {"--seeds"} if command == "train" else {"--trials", "--search", "--train-best"}
    assert flags == needed
    for group in ("data", "running", *GROUPS):
        assert re.search(rf"^  {group} ", shown, re.MULTILINE), group
    assert "examples:" in shown


def test_every_flag_is_in_the_help_of_one_group(capsys):
    groups, flags = cli.parsers()["tune"].groups, []
    for group in groups:
        flags += re.findall(r"^  (--[a-z-]+)", helped(capsys, "tune", "--help", group), re.MULTILINE)
    everything = {flag for flag in cli.parsers()["tune"]._option_string_actions if flag.startswith("--")}
    assert sorted(flags) == sorted(everything - {"--help"})
    assert "--image-net" in helped(capsys, "train", "--help", "images")
    assert "--image-net" not in helped(capsys, "train", "--help", "network")


def test_the_help_of_train_explains_every_setting(capsys):
    shown = helped(capsys, "train", "--help", "all")
    for field in dataclasses.fields(Settings):
        assert "--" + field.name.replace("_", "-") in shown
    assert "n_E" in shown


def test_the_main_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("train", "evaluate", "predict", "data", "methods"))


# ---------------------------------------------------------------- errors

ERRORS = [
    (["train", "bibtx"], "did you mean bibtex"),
    (["train", "nothing-like-it"], "digits-completion"),
    (["train", "digits-pairs", "--method", "seel"], "cross-entropy"),
    (
        ["train", "digits-pairs", "--loss", "margarine"],
        "auto chooses its loss, and none is called 'margarine'; did you mean margin?",
    ),
    (["train", "digits-pairs", "--method", "dvn", "--loss", "nce"], "it takes regression"),
    (["train", "missing.csv", "--labels", "a"], "missing.csv"),
    (["train", "digits-pairs", "--recipe", "nope"], "no recipe 'nope'"),
    (["train", "digits-pairs", "--epochs", "0"], "epochs must be above 0"),
    (["train", "digits-pairs", "--epochs", "many"], "epochs"),
    (["train", "digits-pairs", "--inference-start", "moon"], "inference"),
    (["train", "digits-pairs", "--no-such-flag", "1"], "no-such-flag"),
    (["train", "digits-pairs", "--split", "missing.json"], "missing.json"),
    (["train", "digits-pairs", "--device", "warp"], "use cpu, cuda or auto"),
    (["train", "digits-pairs", "--labels", "a"], "read as it is; labels=, --labels are for files"),
    (["train", "digits-pairs", "--resume"], "--output"),
    (["train"], "data"),
    (["predict", "nowhere", "input.csv"], "nowhere: no model here"),
    (["evaluate", "nowhere", "digits-pairs"], "nowhere: no model here"),
    (["data", "show"], "lossnet data show"),
    (["data", "show", "bibtx"], "did you mean bibtex"),
    (["trian", "digits-pairs"], "trian is no command; did you mean train?"),
    (["train", "--help", "dta"], "no group 'dta' of flags; did you mean data?"),
    (["train", "d", "--learning-rate", "1"], "for --learning-rate, did you mean --lr?"),
    (["train", "d", "--batch=9"], "for --batch, did you mean --batch-size?"),
    (["train", "d", "--lables", "a"], "for --lables, did you mean --labels"),
    (["train", "d", "-epochs", "3"], "for -epochs, did you mean --epochs?"),
    (["train", "d", "--dropout", "0.3"], "--word-dropout or --task-dropout"),
    (["train", "d", "--xyzzy"], "'lossnet train --help all' lists all flags"),
    (["predict", "m", "--xyzzy"], "'lossnet predict --help' lists all flags"),
    (["train", "--labels", "a", "b.csv"], "required: data (before flags that take several values"),
    (["train", "digits-pairs", "--method", "crossentropy"], "did you mean cross-entropy?"),
    (["train", "digits-pairs", "--loss", "margni"], "did you mean margin?"),
    (
        ["train", "digits-pairs", "--method", "dvn", "--loss", "nce"],
        "nce is for nce-energy, seal-static",
    ),
    (
        ["train", "digits-pairs", "--method", "crf"],
        "not for labels; its methods are cross-entropy, stack, spen",
    ),
    (["train", "digits-pairs", "--solver", "neuman"], "did you mean neumann?"),
    (["train", "digits-pairs", "--epochs", "1.5"], "give a whole number"),
    (["train", "digits-pairs", "--lr", "0"], "must be above 0"),
    (["train", "digits-pairs", "--recipe", "bibtex/seal-nec"], "did you mean bibtex/seal-nce"),
    (["train", "digits-pairs", "--track", "tensorbord"], "did you mean tensorboard?"),
    (["train", "digits-pairs", "--goal", "microf1"], "did you mean micro-f1?"),
    (
        ["train", "digits-scenes", "--goal", "f1"],
        "masks cannot be predicted for 'f1'; goals of masks",
    ),
    (["train", "digits-pairs", "--sweep", "lr=1,2"], "did you mean task_lr or energy_lr?"),
    (["train", "digits-pairs", "--features", "case"], "has no sentences"),
    (["train", "digits-pairs", "--encoding", "latin-1"], "--encoding are for files"),
    (["data", "show", "bookmarks"], "bookmarks.arff"),
    (["data", "show", "missing.arff"], "missing.arff"),
    (["dance"], "dance"),
    ([], "lossnet"),
]


@pytest.mark.parametrize(("command", "message"), ERRORS, ids=[" ".join(c) for c, _ in ERRORS])
def test_mistakes_are_answered_by_one_message(command, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in failed(command, capsys)
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_label_pattern_that_matches_nothing(table, capsys):
    message = failed(["train", table, "--labels", "lbl_*", *TINY], capsys)
    assert "lbl_*" in message
    assert "mine.csv" in message


def test_label_columns_and_files_that_are_mistyped(table, capsys):
    assert "did you mean label_a" in failed(["train", table, "--labels", "lable_a"], capsys)
    near = table.with_name("mien.csv")
    assert f"no such file; did you mean {table}?" in failed(["train", near, "--labels", "l"], capsys)
    assert "did you mean label_a" in failed(["train", table, "--words", "label-a", "--labels", "l"], capsys)


def test_labels_may_be_listed_with_commas(table, capsys):
    assert main(["data", "show", str(table), "--labels", "label_a,label_c"]) == 0
    assert "label_b (" not in capsys.readouterr().out


def test_a_table_without_labels_says_how_to_name_them(table, capsys):
    assert "labels" in failed(["train", table, *TINY], capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there(table, trained, capsys):
    command = ["train", table, "--labels", "label_*", "--device", "cuda"]
    assert "no CUDA device" in failed(command, capsys)
    assert "no CUDA device" in failed(["evaluate", trained, table, "--device", "cuda"], capsys)


def test_resuming_without_a_checkpoint(table, tmp_path, capsys):
    command = ["train", table, "--labels", "label_*", *TINY, "--resume", "--output", tmp_path / "x"]
    message = failed(command, capsys)
    assert "no checkpoint here; start without resuming" in message
    assert str(tmp_path / "x") in message


def test_a_folder_that_is_no_model(trained, table, tmp_path, capsys):
    assert "no model here" in failed(["predict", tmp_path, table], capsys)
    (trained / "model" / "model.json").write_text("{")
    assert "damaged model folder" in failed(["evaluate", trained, table], capsys)


def test_a_file_with_other_columns(trained, tmp_path, capsys):
    other = tmp_path / "other.csv"
    other.write_text("length,depth\n1,2\n")
    assert "width" in failed(["predict", trained, other], capsys)


def test_evaluating_on_data_with_other_columns(trained, capsys):
    assert "give the columns of training" in failed(["evaluate", trained, "digits-pairs"], capsys)


def test_evaluating_on_a_file_without_labels(trained, tmp_path, capsys):
    file = write_csv(tmp_path / "bare.csv", rows(5)[0])
    assert "label" in failed(["evaluate", trained, file], capsys)


def test_an_output_that_cannot_be_a_folder_is_found_out_before_training(table, tmp_path, capsys, monkeypatch):
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr(Trainer, "fit", lambda *arguments: pytest.fail("it trained first"))
    command = ["train", table, "--labels", "label_*", *TINY, "--output", tmp_path / "taken"]
    assert "taken" in failed(command, capsys)


def test_an_output_file_that_cannot_be_written(trained, table, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    assert "folder" in failed(["predict", trained, table, "-o", tmp_path / "folder"], capsys)


# ---------------------------------------------------------------- exit codes


def test_a_diverged_run_exits_with_3(table, capsys):
    command = ["train", table, "--labels", "label_*", *TINY, "--task-lr", "1e6", "--epochs", "30"]
    message = failed([*command, "--energy-lr", "1e6"], capsys, status=3)
    assert "learning rate (now 1e+06)" in message


def raising(error):
    def train(run):
        raise error

    return train


def test_ctrl_c_exits_with_130(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(lossnet.run, "carry_out", raising(Interrupted("stopped at epoch 3", tmp_path / "x")))
    message = failed(["train", "d", "--output", tmp_path], capsys, status=130)
    assert "stopped at epoch 3" in message
    assert "--resume" in message
    monkeypatch.setattr(lossnet.run, "carry_out", raising(KeyboardInterrupt()))
    assert failed(["train", "d"], capsys, status=130) == "lossnet: stopped\n"
    monkeypatch.setattr(lossnet.run, "carry_out", raising(NonFiniteLoss("energy: loss nan")))
    assert "energy: loss nan" in failed(["train", "d"], capsys, status=3)


def press_ctrl_c_in_the_second_epoch(monkeypatch):
    original, epochs = Eager.start_epoch, []

    def press(self, *arguments):
        epochs.append(1)
        if len(epochs) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(Eager, "start_epoch", press)


def test_ctrl_c_then_resume_gives_the_same_model(table, tmp_path, capsys, monkeypatch):
    command = ["train", table, "--labels", "label_*", *TINY, "--epochs", "3", "--output"]
    assert main([*map(str, command), str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        press_ctrl_c_in_the_second_epoch(patch)
        message = failed([*command, tmp_path / "cut"], capsys, status=130)
    assert "--resume" in message
    assert not (tmp_path / "cut" / "result.json").exists()
    assert main([*map(str, command), str(tmp_path / "cut"), "--resume"]) == 0
    files = [tmp_path / name / "model" / "model.safetensors" for name in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()
    whole, cut = (result_of(tmp_path / name) for name in ("whole", "cut"))
    assert whole["metrics"] == cut["metrics"]
    capsys.readouterr()


@pytest.mark.parametrize("many", [[], ["--seeds", "2", "--method", "spen", "--inference-steps", "1"]])
def test_ctrl_c_while_a_result_is_measured_says_how_to_go_on(table, tmp_path, capsys, monkeypatch, many):
    command = ["train", table, "--labels", "label_*", *TINY, *many, "--output", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr("lossnet.run.measure", lambda *given: signal.raise_signal(signal.SIGINT))
        message = failed(command, capsys, status=130)
        assert f"progress is saved in {tmp_path / 'run'}" in message
        assert "--resume" in message
    assert main([*map(str, command), "--resume"]) == 0
    capsys.readouterr()


def test_ctrl_c_before_anything_is_saved_does_not_promise_to_resume(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lossnet.run.read", lambda *given: signal.raise_signal(signal.SIGINT))
    command = ["train", table, "--labels", "label_*", *TINY, "--output", tmp_path / "run"]
    assert failed(command, capsys, status=130) == "lossnet: stopped\n"


def test_ctrl_c_without_an_output_does_not_promise_to_resume(table, capsys, monkeypatch):
    press_ctrl_c_in_the_second_epoch(monkeypatch)
    command = ["train", table, "--labels", "label_*", *TINY, "--epochs", "3"]
    assert "--resume" not in failed(command, capsys, status=130)


HELP = [
    ("--help", "train a model"),
    ("--version", "lossnet "),
    ("train --help", "--labels"),
    ("train --help all", "--image-net"),
    ("tune --help", "--trials"),
    ("predict --help", "--keep"),
    ("serve --help", "--port"),
]


@pytest.mark.parametrize(("argument", "said"), HELP)
def test_help_and_version_import_no_torch(argument, said):
    code = (
        "import atexit, sys\n"
        "from lossnet.cli import main\n"
        "atexit.register(lambda: print('torch' in sys.modules, 'numpy' in sys.modules))\n"
        f"main({argument.split()!r})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert said in run.stdout
    assert run.stdout.endswith("False False\n")


@pytest.mark.parametrize("given", [[], ["trian", "digits-pairs"], ["--quiet", "train"], ["--", "methods"]])
def test_without_a_command_they_are_listed(given, capsys):
    with pytest.raises(SystemExit) as stop:
        main(given)
    assert stop.value.code == 2
    assert "tune" in capsys.readouterr().err


def test_train_without_a_report(tmp_path, capsys):
    options = ["--method", "cross-entropy", "--epochs", "1", *TINY, "--output", str(tmp_path)]
    assert main(["train", "digits-pairs", *options, "--no-report"]) == 0
    assert (tmp_path / "result.json").is_file()
    assert not (tmp_path / "report.html").exists()
    assert "the report is in" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "error", "file"),
    [
        ("lossnet.files.os.replace", OSError(errno.ENOSPC, "full"), "checkpoint.safetensors"),
        ("lossnet.model.Path.write_bytes", OSError(errno.ENOSPC, "full"), ""),
        (
            "lossnet.training.checkpoint.save_file",
            SafetensorError("I/O error: No space left on device (os error 28)"),
            "checkpoint.safetensors",
        ),
    ],
)
def test_a_full_disk_is_one_line_that_names_the_file(tmp_path, monkeypatch, capsys, function, error, file):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(function, fail)
    options = ["--method", "cross-entropy", "--epochs", "1", *TINY, "--output", tmp_path / "run"]
    message = failed(["train", "digits-pairs", *options], capsys)
    where = tmp_path / "run" / file
    advice = "free some space or choose another --output"
    assert message == f"lossnet: cannot write {where}: No space left on device; {advice}\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_what_cannot_be_printed_is_one_line(trained, table, capsys):
    message = failed(["predict", trained, table, "-o", "/dev/full"], capsys)
    assert message.startswith("lossnet: cannot write /dev/full: No space left on device; ")
    with open("/dev/full", "w") as nowhere:
        command = [sys.executable, "-m", "lossnet", "methods"]
        run = subprocess.run(command, stdout=nowhere, stderr=subprocess.PIPE, text=True, timeout=60)
    assert run.returncode == 2
    assert run.stderr.startswith("lossnet: cannot write the standard output: No space left on device; ")
    assert run.stderr.count("\n") == 1


def test_the_installed_command_works():
    command = [sys.executable, "-m", "lossnet.cli", "methods"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "seal-static" in run.stdout
    assert run.stderr == ""


def test_a_recipe_brings_its_method_and_flags_override_it(monkeypatch, capsys):
    runs = []
    monkeypatch.setattr(lossnet.run, "carry_out", lambda run: runs.append(run))
    monkeypatch.setattr(commands, "show_metrics", lambda *given: None)
    for more in ([], ["--method", "seal", "--loss", "ranking"]):
        with contextlib.suppress(TypeError):
            main(["train", "digits-pairs", "--recipe", "bibtex/cross-entropy-none-tuned", *more])
    assert [(run.method, run.loss, run.settings.task_lr) for run in runs] == [
        ("cross-entropy", "none", 0.005),
        ("seal", "ranking", 0.005),
    ]


def test_a_finished_run_cannot_be_resumed(trained, capsys):
    message = failed(["train", "digits-pairs", "--output", trained, "--resume"], capsys)
    assert "finished" in message


def test_warnings_are_plain_lines_said_once(tmp_path, capsys):
    rows = "".join(f"{i},The {i}th,{i % 5},{i % 2}\n" for i in range(60))
    table = tmp_path / "titled.csv"
    table.write_text(f"id,title,size,l\n{rows}")
    command = ["train", str(table), "--labels", "l", "--method", "cross-entropy", "--epochs", "1", *TINY]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main([*command, "--output", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "'title' is left out" in line] == [
        f"lossnet: {table}: 'title' is left out: free text; 60 of 60 values are unique"
    ]
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.filterwarnings("default::UserWarning")
def test_columns_and_values_are_accounted_for(tmp_path, capsys):
    """What is read of a table is shown, kept and put on the card; unknown values are missing, or refused."""
    rows = "".join(
        f"{i},The {i}th,{i % 5},{'ab'[i % 2]},2001-{1 + i % 12:02}-01,{i % 2}\n" for i in range(60)
    )
    table, output, new = tmp_path / "titled.csv", tmp_path / "run", tmp_path / "new.csv"
    table.write_text(f"id,title,size,kind,day,l\n{rows}")
    assert main(["data", "show", str(table), "--labels", "l"]) == 0
    shown = capsys.readouterr().out
    command = ["train", str(table), "--labels", "l", "--method", "cross-entropy", "--epochs", "1", *TINY]
    assert main([*command, "--no-report", "--output", str(output)]) == 0
    for text in (shown, capsys.readouterr().out):
        for name, what in (
            ("kind", "category of 2 values"),
            ("day", "date, as 8"),
            ("title", "not used: free text"),
        ):
            assert [line for line in text.splitlines() if name in line and what in line]
    columns = json.loads((output / "result.json").read_text())["columns"]
    assert columns["used"] == ["size", "kind", "day"]
    assert list(columns["dropped"]) == ["id", "title"]
    card = (output / "model" / "README.md").read_text()
    assert "Columns used (3): size, kind, day." in card
    assert "title (free text; 60 of 60 values are unique)" in card

    new.write_text("day,kind,extra,size,l\nsoon,c,x,1,1\n2001-01-01,c,x,1,0\n")
    for asked in (["predict", output, new], ["evaluate", output, new]):
        assert main(list(map(str, asked))) == 0
        (said,) = capsys.readouterr().err.splitlines()
        assert said == (
            f"lossnet: {new}: 3 values that training did not have count as missing: "
            "2 of 'kind' ('c'), 1 of 'day' ('soon')"
        )
        assert "'soon' in 'day' is not a date" in failed([*asked, "--unknown", "error"], capsys)


def test_a_reader_that_has_seen_enough_is_no_error(trained, table, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["predict", str(trained), str(table)]) == 0
    monkeypatch.undo()
    assert capsys.readouterr().err == ""
