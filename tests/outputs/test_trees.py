"""Trees as a kind of output: decoding, metrics, what models keep and print, and every method on them."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossnet import scores
from lossnet.brackets import PLAIN, read_tree
from lossnet.cli import main
from lossnet.data import DataError, Examples, Sentences, TagColumn, TreeColumn
from lossnet.decoding import Decision
from lossnet.loading import Loaded
from lossnet.methods.infnet_plus import Stacked
from lossnet.model import ModelError, load
from lossnet.outputs import Predicted, Trees
from lossnet.run import Run, train
from lossnet.settings import Settings
from lossnet.spaces import Trees as TreeSpace
from lossnet.spans import Span

NAMES = (*PLAIN, "l:NP L:S", "r.")
SPACE = TreeSpace(len(NAMES), NAMES)


def one_hot(*sentences, names=NAMES):
    y = torch.zeros(len(sentences), max(map(len, sentences)), len(names))
    for row, tags in enumerate(sentences):
        for place, tag in enumerate(tags):
            y[row, place, names.index(tag)] = 1
    return y


def is_tree(tags):
    try:
        read_tree(tags)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------- the space


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_decoding_finds_the_likeliest_tree_of_all(length):
    names = (*PLAIN, "r R:X")
    space = TreeSpace(len(names), names)
    generator = torch.Generator().manual_seed(length)
    # Sentences of several lengths, padded with zeros, so that padding is seen to change nothing.
    lengths = [length, max(length - 2, 1), length]
    relaxed = torch.rand(3, length, len(names), generator=generator, dtype=torch.float64).softmax(-1)
    for row, real in enumerate(lengths):
        relaxed[row, real:] = 0
    decoded = space.decode(relaxed)
    for row, real in enumerate(lengths):
        best = max(
            (tags for tags in itertools.product(range(len(names)), repeat=real)
             if is_tree([names[tag] for tag in tags])),
            key=lambda tags: sum(float(relaxed[row, place, tag].log()) for place, tag in enumerate(tags)),
        )  # fmt: skip
        assert decoded[row].argmax(-1)[:real].tolist() == list(best)
        assert decoded[row, real:].sum() == 0


@given(
    st.lists(st.lists(st.sampled_from(range(len(NAMES))), min_size=1, max_size=12), min_size=1, max_size=4)
)
@settings(max_examples=150, deadline=None)
def test_a_tree_comes_of_any_tags_and_trees_stay_as_they_are(rows):
    given_tags = [[NAMES[tag] for tag in row] for row in rows]
    y = one_hot(*given_tags)
    decoded = SPACE.decode(y)
    mask = y.sum(-1) > 0
    held = SPACE.hold(y.argmax(-1), mask)
    for row, tags in enumerate(given_tags):
        found = [NAMES[tag] for tag in decoded[row].argmax(-1)[: len(tags)].tolist()]
        assert is_tree(found)
        assert bool(held[row]) == is_tree(tags)
        if is_tree(tags):
            assert found == tags
    assert bool(SPACE.hold(decoded.argmax(-1), mask).all())


def test_neighbours_that_no_tree_has_are_ruled_out():
    allowed = SPACE.constraints()
    for tags in itertools.product(PLAIN, repeat=3):
        numbers = torch.tensor([[NAMES.index(tag) for tag in tags]])
        if is_tree(tags):
            assert bool(allowed.hold(numbers, torch.ones(1, 3, dtype=torch.bool)))
    wrong = torch.tensor([[NAMES.index("l L"), NAMES.index("r"), NAMES.index("r")]])
    assert not bool(allowed.hold(wrong, torch.ones(1, 3, dtype=torch.bool)))


def test_a_space_needs_tags_of_each_kind():
    with pytest.raises(ValueError, match="no tag is of the kind DOWN, LAST"):
        TreeSpace(4, ("l", "l L", "l R", "r L"))


def test_networks_that_know_the_truth_have_the_width_of_trees():
    assert Stacked(SPACE).change.weight.shape == (len(NAMES), 2 * len(NAMES))


# ---------------------------------------------------------------- metrics


def test_metrics_of_trees():
    truth = one_hot(
        [
            "l:NP L:S",
            "r",
        ][:2],
        ["l L", "l R", "r."],
        ["l"],
    )
    said = one_hot(["l:NP L:S", "r"], ["l L", "l R", "l R"], ["l"])
    values = scores.meter(SPACE).measure(said, truth)
    assert values == {
        "bracket_f1": 1.0, "exact_match": 1.0, "accuracy": 5 / 6, "precision": 1.0, "recall": 1.0,
        "well_formed": 2 / 3,
    }  # fmt: skip
    half = scores.meter(SPACE).measure(one_hot(["l L", "r"]), one_hot(["l:NP L:S", "r"]))
    assert (half["bracket_f1"], half["exact_match"], half["well_formed"]) == (0.0, 0.0, 1.0)
    nothing = scores.meter(SPACE).measure(torch.full((1, 2, len(NAMES)), torch.nan), one_hot(["l L", "r"]))
    assert nothing["exact_match"] == 1.0  # a tree without labels comes of no probabilities
    with pytest.raises(ValueError, match="brackets are undefined"):
        scores.meter(SPACE).compute()


# ---------------------------------------------------------------- the kind


TREES = {
    ("Ann", "left", "."): (Span(0, 2, "S"), Span(0, 1, "NP"), Span(1, 2, "VP")),
    ("Ann", "saw", "Bo"): (Span(0, 3, "S"), Span(0, 1, "NP"), Span(1, 3, "VP"), Span(2, 3, "NP")),
    ("Go",): (Span(0, 1, "S"), Span(0, 1, "VP")),
    ("Bo", "saw", "Ann", "."): (
        Span(0, 3, "S"), Span(0, 1, "NP"), Span(1, 3, "VP"), Span(2, 3, "NP"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded():
    tokens = tuple(TREES) * 4
    trees = [TREES[words] for words in tokens]
    points = [[place for place, word in enumerate(words) if word == "."] for words in tokens]
    data = Examples(Sentences(tokens), TreeColumn.of(trees, map(len, tokens), points))
    return Loaded.from_parts(data, data, data, name="small")


SMALL = {
    "epochs": 25, "task_hidden": 12, "energy_hidden": 12, "task_lr": 0.02, "energy_lr": 0.02, "samples": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "changes"),
    [("cross-entropy", {}), ("crf", {}), ("seal", {"epochs": 8}), ("infnet-plus", {"epochs": 8})],
)
def test_methods_of_tags_learn_trees(loaded, method, changes):
    run = Run("small", method, settings=Settings(**SMALL | changes), progress=False, device="cpu")
    metrics = train(run, loaded)["metrics"]["test"]
    assert metrics["bracket_f1"] > 0.6
    assert set(metrics) == {
        "bracket_f1", "exact_match", "accuracy", "precision", "recall", "well_formed",
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(loaded, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "trees"
    run = Run("small", "cross-entropy", settings=Settings(**SMALL), output=path, progress=False, device="cpu")
    train(run, loaded)
    return path


def test_a_model_prints_trees(folder, capsys):
    assert main(["predict", str(folder), "--text", "Ann saw Bo\nBo left ."]) == 0
    first, second, rest = capsys.readouterr().out.split("\n\n")
    assert first == "(TOP (S (NP Ann) (VP saw (NP Bo))))"
    assert second.startswith("(TOP")
    assert not rest


def test_answers_over_http_are_trees_in_one_line(folder):
    model = load(folder)
    task = model.task
    data = task.read(["Ann saw Bo"])
    relaxed, _ = model.probabilities(data)
    answers = task.output.answers(relaxed, task.output.decoder(None, model.decision), data.source, [])
    assert answers == ["(TOP (S (NP Ann) (VP saw (NP Bo))))"]
    assert task.output.metrics[0].name == "bracket_f1"


def test_outputs_may_be_padded_further_than_inputs(folder):
    model = load(folder)
    model = dataclasses.replace(
        model, decision=dataclasses.replace(model.decision, confidence=(1.0, 1.0, 0.0))
    )
    data = model.task.read([["Ann", "left", "."], ["Go"]])
    decoded = model.task.output.decoder(None, model.decision)(model.probabilities(data)[0])
    padded = torch.nn.functional.pad(decoded, (0, 0, 0, 2))
    assert torch.equal(model.confidences(data, padded), model.confidences(data, decoded))


def test_the_set_is_trained_on_by_name_and_reported(tmp_path, capsys):
    rows = "".join(
        f"0\t{one}\tNNP\t(TOP(S(NP*)\n1\tsaw\tVBD\t(VP*\n2\t{other}\tNNP\t(NP*))\n3\t.\t.\t*))\n\n"
        for one, other in itertools.permutations(("Ann", "Bo", "Cy"), 2)
    )
    (tmp_path / "ewt-trees").mkdir()
    for part in ("train", "dev", "test"):
        (tmp_path / "ewt-trees" / f"ewt.{part}.conll").write_text(rows)
    (tmp_path / "vectors.txt").write_text("Ann 0.5 1\nsaw 1 0\n")
    given = ["--data-dir", str(tmp_path), "--embeddings", str(tmp_path / "vectors.txt"), "--quiet"]
    settings = ["--epochs", "2", "--task-hidden", "4", "--energy-hidden", "4", "--samples", "2"]
    folder = tmp_path / "run"
    command = ["train", "ewt-trees", "--method", "seal", "--output", str(folder), "--device", "cpu"]
    assert main([*command, *given, *settings]) == 0
    result = json.loads((folder / "result.json").read_text())
    assert {"bracket_f1", "well_formed"} < set(result["metrics"]["test"])
    report = (folder / "report.html").read_text()
    assert "bracket F1" in report
    assert report.count("(NP Ann)") >= 2  # trees are drawn
    assert "constituents-table" in report
    assert main(["data", "show", "ewt-trees", "--data-dir", str(tmp_path)]) == 0
    assert "constituents" in capsys.readouterr().out


def test_a_folder_whose_tags_spell_no_trees_is_refused(folder, tmp_path, seal):
    forged = tmp_path / "forged"
    (forged / "model").mkdir(parents=True)
    for file in (folder / "model").iterdir():
        (forged / "model" / file.name).write_bytes(file.read_bytes())
    path = forged / "model" / "model.json"
    content = json.loads(path.read_text())
    tags = content["output"]["tags"]
    for wrong in ("nothing", "x" * 9):
        content["output"]["tags"] = [wrong if tag == "l" else tag for tag in tags]
        path.write_text(json.dumps(content))
        seal(forged / "model")
        with pytest.raises(ModelError, match="spells no part of a tree"):
            load(forged)


def test_tags_that_are_no_trees_are_refused(loaded):
    output = loaded.task.output
    with pytest.raises(DataError, match="tags and no trees"):
        output.preparing(list)(TagColumn((("l",),)))
    with pytest.raises(DataError, match="parts of trees cannot be known"):
        output.known([["l"]], Sentences((("Go",),)))


def test_trees_are_described(loaded):
    columns = [part.target for part in (loaded.train, loaded.valid)]
    facts = Trees.describe(columns)
    assert facts["constituents"] == sum(len(tree) for column in columns for tree in column.trees)
    assert dict(facts["frequent_labels"])["S"] == 32


def test_a_file_has_a_tree_for_each_sentence(loaded):
    output, batch = loaded.task.output, loaded.test.batch(np.arange(4))
    source = loaded.test.source.take(np.arange(4))
    lines = list(output.lines([Predicted(source, batch.y)], output.decoder(None, Decision())))
    assert lines[0] == "(TOP (S (NP Ann) (VP left)) .)\n\n"
    assert len(lines) == 4
