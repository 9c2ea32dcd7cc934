"""Tagging from files to predictions, small."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from lossnet.build import METHODS, build
from lossnet.cli import main
from lossnet.data import DataError
from lossnet.decoding import Decision
from lossnet.energies import Chain, TagLM
from lossnet.loading import load
from lossnet.methods import InfNetPlus, Separated, Shared, Stacked
from lossnet.model import ModelError
from lossnet.model import load as load_model
from lossnet.outputs import Tags
from lossnet.run import Run, train
from lossnet.scores import TokenCost, main_metric, metrics
from lossnet.settings import Settings
from lossnet.spaces import Tags as TagSpace
from lossnet.task import Task

QUICK = Settings(
    epochs=1, batch_size=8, samples=2, inference_steps=2, task_hidden=6, energy_hidden=6, implicit_weight=1.0,
    tune_embeddings=True,
)  # fmt: skip
PEOPLE, PLACES, VERBS = ("Ann", "Bo", "Lee", "Eve"), ("Paris", "Rome", "Oslo"), ("saw", "left", "likes")


def sentences(count, seed):
    """Names of one or two words, a verb, a place."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        names = random.choice(PEOPLE, random.integers(1, 3)).tolist()
        rows = [(name, "NNP", "I-PER") for name in names]
        rows.append((random.choice(VERBS), "VBD", "O"))
        rows.append((random.choice(PLACES), "NNP", "I-LOC"))
        yield rows + [(".", ".", "O")] * int(random.integers(0, 2))


def written(path, count, seed):
    lines = ["\n".join(" ".join(row) for row in sentence) for sentence in sentences(count, seed)]
    path.write_text("\n\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A set with names to find, in three files, and vectors for some of its words."""
    made = tmp_path_factory.mktemp("names")
    for seed, (part, count) in enumerate((("train", 100), ("valid", 12), ("test", 15))):
        written(made / f"{part}.conll", count, seed)
    return made


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    words = ["ann", "lee", "paris", "rome", "saw"]
    random = np.random.default_rng(0)
    path.write_text("".join(f"{word} {' '.join(map(str, random.normal(size=5)))}\n" for word in words))
    return path


def run(folder, *names, settings=QUICK, **options):
    return train(Run(str(folder), *names, settings=settings, device="cpu", progress=False, **options))


@pytest.mark.parametrize(
    ("method", "loss"),
    [
        (name, loss)
        for name, spec in METHODS.items()
        for loss in spec.losses
        if spec.suits(loss, TagSpace(2)) and not spec.rules  # which needs some
    ],
)
def test_every_method_trains_on_tags(folder, method, loss):
    result = run(folder, method, loss)
    assert set(result["metrics"]["test"]) == {"accuracy", "precision", "recall", "span_f1"}
    assert all(0 <= value <= 1 for value in result["metrics"]["test"].values())


@pytest.mark.parametrize("names", [("cross-entropy", "none"), ("crf", "likelihood"), ("seal", "nce")])
def test_a_trained_model_finds_names_and_comes_back_from_its_folder(folder, vectors, tmp_path, names):
    settings = dataclasses.replace(
        QUICK, epochs=15, task_lr=2e-2, energy_lr=2e-2, features="case,column2,characters", task_dropout=0.0
    )
    result = run(folder, *names, settings=settings, output=tmp_path, embeddings=[vectors])
    assert result["metrics"]["test"]["span_f1"] > 0.9
    model, data = load_model(tmp_path), load(folder, features="case,column2,characters", embeddings=[vectors])
    assert model.task.input.lexicon == data.task.input.lexicon
    relaxed, truth = model.probabilities(data.test)
    assert model.task.output.meter(Decision()).measure(relaxed, truth) == pytest.approx(
        result["metrics"]["test"]
    )
    decoded = model.predict(data.test.source)
    assert decoded.shape == truth.shape
    assert (decoded.sum(-1) == truth.numpy().sum(-1)).all()


def test_texts_are_tagged_as_tokens(folder, tmp_path):
    settings = dataclasses.replace(QUICK, epochs=20, task_lr=2e-2, features="case")
    run(folder, "cross-entropy", settings=settings, output=tmp_path)
    model = load_model(tmp_path)
    wanted = [("Ann", "I-PER"), ("Lee", "I-PER"), ("saw", "O"), ("Rome", "I-LOC"), (".", "O")]
    assert model.tag(["Ann Lee saw Rome.", "Bo left Oslo"])[0] == wanted
    assert model.tag([["Ann", "Lee", "saw", "Rome", "."]]) == [wanted]
    assert model.label_names == model.task.output.names
    assert model.feature_names == ()


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("IOB1", "I-PER I-PER B-PER O O O"),
        ("IOB2", "B-PER I-PER B-PER O O O"),
        ("BIOES", "B-PER E-PER S-PER O O O"),
        (None, "B-PER E-PER S-PER O E-LOC I-PER"),
    ],
)
def test_spans_are_marked_as_the_files_did_and_pieces_left_out(folder, scheme, expected):
    task = load(folder).task
    output = Tags(dataclasses.replace(task.output.tag_set, scheme=scheme))
    names = output.names
    said = [names.index(tag) for tag in ["B-PER", "E-PER", "S-PER", "O", "E-LOC", "I-PER", "O", "O"]]
    relaxed = torch.eye(len(names))[torch.tensor([said])]
    decoded = output.decoder(None, 0.5)(relaxed)
    ((*tagged,),) = output.named(decoded, task.read([list("abcdef")]).source)
    assert [token for token, _ in tagged] == list("abcdef")
    assert " ".join(tag for _, tag in tagged) == expected


def test_the_command_line_trains_evaluates_and_tags(folder, tmp_path, capsys):
    out, answer = tmp_path / "run", tmp_path / "answer.json"
    flags = ["--epochs", "20", "--task-lr", "0.02", "--task-hidden", "6", "--quiet", "--device", "cpu"]
    flags += ["--no-report"]
    command = ["train", str(folder), "--method", "infnet-plus", "--features", "column2", "--output", str(out)]
    assert main([*command, *flags, "--energy-hidden", "6"]) == 0
    assert main(["train", str(folder), *command[2:4], *flags, "--output", str(tmp_path / "words")]) == 0
    assert main(["evaluate", str(tmp_path / "words"), str(folder), "--output", str(answer)]) == 0
    reported = json.loads((tmp_path / "words" / "result.json").read_text())
    assert json.loads(answer.read_text())["metrics"]["test"] == pytest.approx(reported["metrics"]["test"])
    assert reported["settings"]["features"] == ""
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "words"), "--text", "Ann saw Rome .\nBo left Oslo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(line.partition("\t")[0] for line in lines) == "Ann saw Rome .  Bo left Oslo "
    assert lines[0] == "Ann\tI-PER", "as the files mark names"
    text = tmp_path / "text.txt"
    text.write_text("Ann saw Rome .\n\n")
    assert main(["predict", str(tmp_path / "words"), str(text), "-o", str(tmp_path / "tags.txt")]) == 0
    assert (tmp_path / "tags.txt").read_text().splitlines() == lines[:5]
    capsys.readouterr()
    assert main(["predict", str(out), "--text", "Ann saw Rome"]) == 2
    assert "no column column2" in capsys.readouterr().err
    columns = tmp_path / "columns.conll"
    columns.write_text("Ann NNP\nsaw VBD\nRome NNP\n")
    assert main(["predict", str(out), str(columns)]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("-PER")
    assert main(["predict", str(out)]) == 2
    assert "give a file to predict for, or --text" in capsys.readouterr().err
    columns.write_text("Ann\nsaw\n")
    assert main(["predict", str(out), str(columns)]) == 2
    assert "words and then column2" in capsys.readouterr().err


def test_settings_choose_networks_and_energies(folder):
    task = load(folder, features="case,characters").task
    net = task.task_net(Settings(task_hidden=5, task_dropout=0.3))
    assert net.encoder.width == 10
    assert net.encoder.dropout.p == 0.3
    assert net.encoder.words.characters is not None
    assert len(net.encoder.words.columns) == 1
    terms = {name: task.energy(Settings(tag_models=name, word_model_weight=0.4)).terms for name in
             ("none", "forward", "both", "words")}  # fmt: skip
    assert [len(found) for found in terms.values()] == [1, 2, 3, 5]
    assert all(type(found[0]) is Chain for found in terms.values())
    described = [(model.backward, model.words is not None, model.weight) for model in terms["words"][1:]]
    assert described == [(False, False, 1), (True, False, 1), (False, True, 0.4), (True, True, 0.4)]
    assert isinstance(terms["forward"][1], TagLM)
    for name, kind in (("stacked", Stacked), ("shared", Shared), ("separated", Separated)):
        method = build("infnet-plus", "margin", dataclasses.replace(QUICK, cost_net=name, task_steps=5,
                       perceptron_weight=0.3, zero_truncation=True), task)  # fmt: skip
        assert isinstance(method, InfNetPlus)
        assert type(method.cost_net) is kind
        assert (method.task_steps, method.weight, method.truncated) == (5, 0.3, True)
        assert isinstance(method.loss.score, TokenCost)
    assert build("infnet", "perceptron", dataclasses.replace(QUICK, zero_truncation=True), task).truncated


def test_spans_choose_models_where_tags_mark_them(folder, tmp_path):
    space = load(folder).task.space(Settings())
    assert main_metric(space) == "span_f1"
    assert main_metric(TagSpace(3)) == "accuracy"
    written(tmp_path / "all.conll", 9, seed=0)
    text = (tmp_path / "all.conll").read_text()
    for before, after in (("I-PER", "N"), ("I-LOC", "N"), (" O", " X")):
        text = text.replace(before, after)
    (tmp_path / "all.conll").write_text(text)
    assert main_metric(load(tmp_path / "all.conll").task.space(Settings())) == "accuracy"


def test_span_metrics_ignore_padding():
    space = TagSpace(4, ("O", "B-X", "E-X", "S-X"))
    truth = torch.eye(4)[torch.tensor([[1, 2, 0], [0, 3, 0]])]
    truth[1, 2] = 0
    predicted = torch.eye(4)[torch.tensor([[1, 2, 3], [0, 3, 3]])]  # one span too many, in a real token
    found = metrics(space, predicted, truth)
    assert found["precision"] == pytest.approx(2 / 3)
    assert found["recall"] == 1
    assert found["accuracy"] == pytest.approx(4 / 5)


def test_binary_losses_are_refused(folder):
    with pytest.raises(ValueError, match="cross-entropy with loss dice is not for tags"):
        run(folder, "cross-entropy", "dice")


def test_the_task_survives_its_description(folder, vectors):
    task = load(folder, features="case,column2", embeddings=[vectors]).task
    content, arrays = task.state()
    again = Task.from_state(json.loads(json.dumps(content)), arrays)
    assert again.input.lexicon == task.input.lexicon
    assert again.input.vector_width == task.input.vectors.shape[1]
    assert again.output == task.output
    assert again.is_like(task)


def test_a_damaged_model_folder_is_refused(folder, tmp_path, seal):
    run(folder, "cross-entropy", output=tmp_path)
    file = tmp_path / "model" / "model.json"
    file.write_text(file.read_text().replace('"lexicon"', '"lexikon"'))
    seal(file.parent)
    with pytest.raises(ModelError, match="lexicon"):
        load_model(tmp_path)


def test_unknown_features_are_refused(folder):
    with pytest.raises(DataError, match="no feature 'colour'"):
        run(folder, "cross-entropy", settings=dataclasses.replace(QUICK, features="colour"))
