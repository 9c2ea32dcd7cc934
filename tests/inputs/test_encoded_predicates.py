"""Roles from the states of a pretrained encoder: kept on disk, learned from, saved, refused."""

import dataclasses

import numpy as np
import pytest
import torch

import lossnet
from lossnet.cli import main
from lossnet.data import DataError, Examples
from lossnet.data.propbank import PredicateSentences, RoleColumn
from lossnet.inputs import EncodedPredicates, Fitting, Predicates
from lossnet.inputs.encoders import Encoder
from lossnet.loading import Loaded
from lossnet.nets import EncodedWords
from lossnet.run import Run, train

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

NOUNS, ADJECTIVES = ("film", "book", "music"), ("good", "bad", "very")
#: what is said of a noun: ``was`` has two roles, and so has ``not``, which are others
TAGS = (("B-ARG0", "O", "B-ARG1", "O", "O"), ("O", "O", "B-ARG0", "O", "B-ARG1"))


def examples():
    tokens = [(n, "was", one, "not", other) for n in NOUNS for one in ADJECTIVES for other in ADJECTIVES]
    source = PredicateSentences.of(tokens, [[1, 3]] * len(tokens))
    return Examples(source, RoleColumn(TAGS * len(tokens)))


def loaded(folder, training="none", features=("predicate", "distance")):
    fitting = Fitting(features=features, encoder=folder, train_encoder=training)
    return Loaded.from_parts(*[examples()] * 3, fitting=fitting, name="said")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSNET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_states_are_those_of_transformers(folder):
    sentences = [("a", "very-good", "film"), ("bad",), ("the", "book", "was", "😀")]
    states = Encoder.find(folder).states(sentences)
    network = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for tokens, mine in zip(sentences, states, strict=True):
        with torch.no_grad():
            hidden = network(torch.tensor([tokenizer.encode(" ".join(tokens)).ids])).last_hidden_state[0]
        first = [1, 2, 5] if len(tokens) == 3 else range(1, 1 + len(tokens))  # very-good has three pieces
        assert mine.dtype == np.float16
        np.testing.assert_allclose(mine, hidden[list(first)].numpy(), rtol=2e-3, atol=2e-3)


def test_they_are_computed_once_for_a_sentence(folder, cache, monkeypatch):
    asked = []
    computed = Encoder.computed_states

    def noted(self, sentences, *more):
        asked.append(len(sentences))
        return computed(self, sentences, *more)

    monkeypatch.setattr(Encoder, "computed_states", noted)
    data = loaded(folder)
    assert asked == [27]  # of 54 predicates, in three parts
    (file,) = cache.glob("*/tokens/*.safetensors")
    again = loaded(folder)
    assert asked == [27]
    for damaged in (b"nothing", file.read_bytes()[:-9]):
        file.write_bytes(damaged)
        again = loaded(folder)
    assert asked == [27] * 3
    x, same = (one.train.batch(torch.arange(4)).x for one in (data, again))
    assert torch.equal(x["states"], same["states"])
    assert torch.equal(x["states"][0], x["states"][1])
    assert not torch.equal(x["tokens"][0], x["tokens"][1])
    data.task.read([("a", "new", "one")])
    assert asked[3:] == [1]
    assert len(list(cache.glob("*/tokens/*"))) == 1  # what a model is asked is not kept


def test_vectors_have_states_and_columns(folder):
    x = loaded(folder).train.batch(torch.arange(2)).x
    words = EncodedWords(16, columns=(4, 20))
    vectors = words.eval()(x)
    assert vectors.shape == (2, 5, words.width) == (2, 5, 16 + 4 + 20)
    assert torch.equal(vectors[..., :16], x["states"])
    blind = EncodedWords(16, columns=(4, 20), dropout=0.999).train()(x)
    assert not blind[..., :16].any()
    assert blind[..., 16:].all()
    unseen = EncodedWords(0, columns=(4, 20))
    assert unseen(x).shape == (2, 5, unseen.width) == (2, 5, 24)


def test_rows_are_taken_and_joined(folder):
    for training in ("none", "all"):
        source = loaded(folder, training).train.source
        other = source.take(np.array([3, 0])).join([source.take(np.array([7]))])
        x, whole = other.batch(torch.arange(3)), source.batch(torch.tensor([3, 0, 7]))
        assert x.keys() == whole.keys()
        assert all(torch.equal(x[name], whole[name]) for name in x)
        assert len(source.batch(torch.arange(0))["tokens"]) == 0


@pytest.mark.parametrize(
    ("training", "method", "changes"),
    [
        ("none", "crf", {}),
        ("none", "seal", {"tag_models": "words"}),
        ("all", "seal", {"tag_models": "attention", "energy_words": False}),
    ],
)
def test_roles_are_learned_and_kept(folder, tmp_path, training, method, changes):
    settings = lossnet.Settings(
        epochs=12, batch_size=8, task_hidden=12, energy_hidden=12, task_lr=0.03, energy_lr=0.03,
        task_dropout=0.0, energy_dropout=0.0, samples=3, energy_weight=0.1, **changes,
    )  # fmt: skip
    data = loaded(folder, training)
    result = train(Run("said", method, settings=settings, output=tmp_path / "run", progress=False), data=data)
    assert result["metrics"]["test"]["span_f1"] > 0.95
    model = lossnet.load(tmp_path / "run")
    assert isinstance(model.task.input, EncodedPredicates)
    said = model.named([("film", "was", "bad", "not", "good")])
    assert [tuple(tag for _, tag in tags) for tags in said] == list(TAGS)  # the finder saw both predicates
    assert model.named([]) == []
    (long,) = model.named([("music", "was", *["very"] * 100)])  # the encoder reads 62 pieces
    assert len(long) == 102


def test_a_marked_sentence_is_read_for_its_predicate(folder):
    kind = Predicates.fit([examples().source], Fitting(features=("predicate",), encoder=folder))
    assert len(kind.lexicon.words) == 2  # words are the encoder's
    marked = PredicateSentences.of([("a", "film")], [[1]])
    assert kind.prepare(kind.read(marked)).places == (1,)
    assert kind.matches(kind.prepare(marked))
    assert not kind.matches(marked)
    trained = dataclasses.replace(kind, encoder=Encoder.find(folder, "top"))
    assert not trained.matches(kind.prepare(marked))


def test_damaged_models_are_refused(folder, tmp_path):
    data = loaded(folder)
    content, arrays = data.task.input.state()
    again = EncodedPredicates.from_state(content, arrays)
    x, same = (one.prepare(examples().source).batch(torch.arange(3)) for one in (data.task.input, again))
    assert all(torch.equal(x[name], same[name]) for name in x)
    lacking = {name: array for name, array in arrays.items() if "layer.0" not in name}
    with pytest.raises(DataError, match="its weights lack"):
        EncodedPredicates.from_state(content, lacking)
    encoder = {**content["encoder"], "train": "some"}
    with pytest.raises(DataError, match="train must be one of"):
        EncodedPredicates.from_state({**content, "encoder": encoder}, arrays)


def test_the_command_line_trains_predicts_and_reports(folder, tmp_path, capsys):
    rows = [f"{at}\t{word}\tX\t*\t-\t{roleset}\t" for at, (word, roleset) in enumerate(
        [("film", "-"), ("was", "be.01"), ("good", "-")]
    )]  # fmt: skip
    sentence = "\n".join(row + role for row, role in zip(rows, ("(ARG0*)", "(V*)", "(ARG1*)"), strict=True))
    (tmp_path / "ewt-propbank").mkdir()
    for part in ("train", "dev", "test"):
        (tmp_path / "ewt-propbank" / f"ewt.{part}.conll").write_text(f"{sentence}\n\n" * 12)
    where = ["--data-dir", str(tmp_path), "--output", str(tmp_path / "run"), "--encoder", str(folder)]
    quick = ["--epochs", "8", "--task-lr", "0.05", "--task-hidden", "8", "--batch-size", "4"]
    assert main(["train", "ewt-propbank", "--method", "cross-entropy", *where, *quick]) == 0
    assert "F1" in (tmp_path / "run" / "report.html").read_text()
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), "--text", "music was bad"]) == 0
    assert capsys.readouterr().out == "music was bad\n  was: ARG0 [music], ARG1 [bad]\n"
    test = tmp_path / "ewt-propbank" / "ewt.test.conll"
    assert main(["evaluate", str(tmp_path / "run"), str(test)]) == 0
