"""Roles from files to predictions, small: who gave what to whom."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from lossnet.build import METHODS
from lossnet.cli import main
from lossnet.data import DataError
from lossnet.energies import TokenFacts, bio, frame_roles, unique_core_roles
from lossnet.loading import load
from lossnet.methods import Rules
from lossnet.model import load as load_model
from lossnet.outputs import Roles as RoleOutput
from lossnet.own import OwnParts, read_rules
from lossnet.run import Run, train
from lossnet.settings import Settings
from lossnet.spaces import Batch, Prediction, Roles

QUICK = Settings(
    epochs=1, batch_size=16, samples=2, inference_steps=2, task_hidden=6, energy_hidden=8, ramp_up=1,
    implicit_weight=1.0, tag_models="attention",
)  # fmt: skip
PEOPLE, THINGS = ("Ann", "Bo", "Lee", "Eve"), ("books", "songs", "bread")
VERBS = {"gave": 2, "sold": 2, "read": 1, "slept": 0}  # and how many objects they have


def sentence(random):
    """``Ann gave Bo two books``, and in every second sentence ``and slept``."""
    verb = list(VERBS)[random.integers(len(VERBS))]
    rows = [(random.choice(PEOPLE), "NNP", "-", ["(ARG0*)"]), (verb, "VBD", f"{verb}.01", ["(V*)"])]
    if VERBS[verb] == 2:
        rows.append((random.choice(PEOPLE), "NNP", "-", ["(ARG2*)"]))
    if VERBS[verb] > 0:
        rows += [("two", "CD", "-", ["(ARG1*"]), (random.choice(THINGS), "NNS", "-", ["*)"])]
    if random.random() < 0.5:
        rows = [(*row, [*roles, "(ARG0*)" if at == 0 else "*"]) for at, (*row, roles) in enumerate(rows)]
        rows += [("and", "CC", "-", ["*", "*"]), ("sang", "VBD", "sing.01", ["*", "(V*)"])]
    return "\n".join(
        "\t".join((str(at), w, p, "*", w, r, *roles)) for at, (w, p, r, roles) in enumerate(rows)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    (made / "ewt-propbank").mkdir()
    for seed, (part, count) in enumerate((("train", 120), ("dev", 12), ("test", 15))):
        random = np.random.default_rng(seed)
        text = "\n\n".join(sentence(random) for _ in range(count))
        (made / "ewt-propbank" / f"ewt.{part}.conll").write_text(text + "\n")
    return made


def run(folder, *names, settings=QUICK, **options):
    where = {"data_dir": folder, "embeddings": [], "device": "cpu", "progress": False}
    return train(Run("ewt-propbank", *names, settings=settings, **where, **options))


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    settings = dataclasses.replace(QUICK, epochs=15, task_lr=2e-2, task_hidden=16, task_dropout=0.0)
    output = tmp_path_factory.mktemp("run")
    return run(folder, "structured-tuning", settings=settings, output=output), output


SPACE = Roles(5, ("O", "B-ARG0", "I-ARG0", "B-ARG1", "I-ARG1"))
SOME = ("crf", "structured-tuning", "seal", "infnet-plus", "implicit", "rules")


@pytest.mark.parametrize("method", SOME)
def test_methods_train_on_roles(folder, method):
    changes = {"tag_models": "none"} if method == "crf" else {}
    assert METHODS[method].suits(METHODS[method].default_loss, SPACE)
    labelled = {"labelled": 40} if method == "rules" else {}
    result = run(folder, method, settings=dataclasses.replace(QUICK, **changes), **labelled)
    metrics = result["metrics"]["test"]
    assert set(metrics) == {
        "accuracy", "precision", "recall", "span_f1", "whole_predicates", "ucr", "odd_continuations",
        "odd_references",
    }  # fmt: skip
    assert all(0 <= value <= 1 for value in metrics.values())
    if method == "rules":
        assert result["measured"]["student"]["unlabelled"] > 0


def test_a_trained_model_knows_who_did_what(trained):
    result, _ = trained
    assert result["metrics"]["test"]["span_f1"] > 0.9
    assert result["metrics"]["test"]["whole_predicates"] > 0.8
    assert result["metrics"]["test"]["ucr"] == 0


def test_a_text_is_read_once_for_each_predicate(trained, capsys):
    _, output = trained
    assert main(["predict", str(output), "--text", "Ann gave Bo two books and sang\ntwo songs\n"]) == 0
    assert capsys.readouterr().out == (
        "Ann gave Bo two books and sang\n"
        "  gave: ARG0 [Ann], ARG2 [Bo], ARG1 [two books]\n"
        "  sang: ARG0 [Ann]\n"
        "\n"
        "two songs\n"
        "  no predicate\n"
    )


def test_files_of_texts_and_of_columns_are_predicted(trained, folder, tmp_path, capsys):
    _, output = trained
    text = tmp_path / "text.txt"
    text.write_text("Bo slept\n\nEve read two songs\n")
    assert main(["predict", str(output), str(text), "-o", str(tmp_path / "roles.txt")]) == 0
    assert (tmp_path / "roles.txt").read_text().splitlines()[:2] == ["Bo slept", "  slept: ARG0 [Bo]"]
    columns = tmp_path / "new.conll"
    rows = ["0 Ann NNP * - -", "1 sold VBD * - sell.01", "2 two CD * - -", "3 songs NNS * - -"]
    columns.write_text("\n".join(rows) + "\n\n0 Ann NNP * - -\n")
    capsys.readouterr()
    assert main(["predict", str(output), str(columns)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Ann sold two songs"
    assert lines[1].startswith("  sold: ")
    assert lines[2:] == ["", "Ann", "  no predicate"]


def test_a_file_is_evaluated_whole(trained, folder, tmp_path):
    result, output = trained
    test = folder / "ewt-propbank" / "ewt.test.conll"
    assert main(["evaluate", str(output), str(test), "--output", str(tmp_path / "metrics.json")]) == 0
    found = json.loads((tmp_path / "metrics.json").read_text())["metrics"]["all rows"]
    assert found == pytest.approx(result["metrics"]["test"])
    with pytest.raises(DataError, match=r"a text has no roles; give a file in PropBank's columns"):
        list(load_model(output).task.input.stream(tmp_path / "metrics.json", labelled=True))


def test_a_model_comes_back_with_its_finder(trained, folder):
    _, output = trained
    model, data = load_model(output), load("ewt-propbank", folder, embeddings=[])
    finder = model.task.input.finder
    assert np.array_equal(finder.weights, data.task.input.finder.weights)
    assert finder.find(("Bo", "sold", "Ann", "bread")) == [1]
    assert model.predict(data.test.source).shape[0] == len(data.test)
    state, arrays = model.task.input.state()
    for broken in (finder.weights[:-1], finder.weights.astype("float64"), finder.weights * np.nan):
        with pytest.raises(DataError, match="finder must be 32769 finite numbers"):
            type(model.task.input).from_state(state, {**arrays, "finder": broken})


def test_frames_forbid_roles_at_prediction_and_in_training(trained, folder, tmp_path):
    _, output = trained
    model = load_model(output)
    texts = ["Ann gave Bo two books"]
    ruled = model.named(texts, rules=[frame_roles({"gave": ["ARG0", "ARG1"]}, weight=math.inf)])
    assert {tag for _, tag in ruled[0]} - {"O", "B-ARG1", "I-ARG1"} == {"B-ARG0"}
    assert "B-ARG2" in {tag for _, tag in model.named(texts)[0]}
    (tmp_path / "frames.csv").write_text("predicate,roles\ngave.01,ARG0 ARG1 ARG2\nslept,ARG0\n")
    rules = tmp_path / "rules.py"
    rules.write_text(
        "from lossnet.data import read_frames\nfrom lossnet.energies import frame_roles\n"
        f"frames = frame_roles(read_frames({str(tmp_path / 'frames.csv')!r}), weight=5.0)\n"
    )
    result = run(folder, "rules", labelled=40, own=OwnParts(rules=read_rules(rules)))
    assert result["parts"]["rules"] == "Rule(frame_roles, weight=5)"


def test_a_report_has_sentences_with_roles(trained, folder):
    _, output = trained
    assert main(["report", str(output), "--data-dir", str(folder)]) == 0
    page = (output / "report.html").read_text()
    assert "ARG2" in page
    assert "predicates with a repeated core role" in page
    assert "<strong>sang</strong>" in page


def test_marked_sentences_over_http(trained):
    _, output = trained
    source = load_model(output).task.input
    given = source.sample()
    assert given["predicate"] == ["-", "-", "V", "-", "-", "-"]
    assert source.parse(given).columns["predicate"] == (("-", "-", "V", "-", "-", "-"),)


@pytest.mark.parametrize(
    "names",
    [["O", "B-A0"], ["B-A0", "I-A0"], ["O", "B-A0", "I-A1"], ["O", *["B-A0", "I-A0"] * 2], ["O", "B-", "I-"]],
)
def test_tags_of_a_folder_that_are_no_roles_are_refused(names):
    with pytest.raises(DataError):
        RoleOutput.from_state({"tags": names, "scheme": "IOB2", "segments": False}, {})
    good = {"tags": ["O", "B-A0", "I-A0"], "scheme": "IOB2", "segments": False}
    assert RoleOutput.from_state(good, {}).names == ("O", "B-A0", "I-A0")


def test_structured_tuning_needs_core_roles():
    from lossnet.methods import StructuredTuning

    with pytest.raises(ValueError, match="needs tags that begin core roles, such as B-ARG0"):
        StructuredTuning(torch.nn.Identity(), Roles(3, ("O", "B-PER", "I-PER")))


def test_the_target_of_rules_is_the_teacher_but_for_roles_that_they_change():
    names = ("O", "B-A0", "I-A0", "B-A1", "I-A1")
    space = Roles(5, names)
    method = Rules(torch.nn.Identity(), space, [bio(), unique_core_roles(weight=20.0)])
    logits = torch.tensor([[[0.0, 9, 0, 0, 0], [2, 5, 0, 0, 0], [3, 0, 0, 2, 0]], torch.eye(5)[:3].tolist()])
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0]])
    facts = {"tokens": TokenFacts((("a", "b", "c"), ("d", "e")), names)}
    torch.manual_seed(0)
    target = method.target(
        Prediction(space, logits, mask), Batch(torch.zeros(2, 3, 1), mask=mask, facts=facts)
    )
    teacher = space.relax(logits, mask)
    torch.testing.assert_close(target[1], teacher[1])
    torch.testing.assert_close(target[0, [0, 2]], teacher[0, [0, 2]])
    assert target[0, 1].tolist() == [1, 0, 0, 0, 0], "the less likely of the two is none"
