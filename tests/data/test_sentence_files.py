from __future__ import annotations

import json

import numpy as np
import pytest

from lossnet.data import DataError, TaggedSentences, read_sentences
from lossnet.data.sentence_files import find_parts
from lossnet.loading import describe, load
from lossnet.task import Task

NEWS = "EU NNP I-ORG\nhails VBZ O\nBonn NNP I-LOC\n\nEU NNP I-ORG\nBonn NNP I-LOC\nhails VBZ O\n\n"
VECTORS = "eu 1 2\nbonn 3 4\n"


def conll(folder, train: str = NEWS) -> None:
    """CoNLL-2003's files in small."""
    folder.mkdir(parents=True)
    four = train.replace("NNP ", "NNP I-NP ").replace("VBZ ", "VBZ I-VP ")
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (folder / name).write_text("-DOCSTART- -X- O O\n\n" + four)


def tweets(folder) -> None:
    folder.mkdir(parents=True)
    for part, text in (
        ("train", "I\tO\nbet\tV\n\n@jo\t@\n"),
        ("dev", "I\tO\n"),
        ("test", "won\tV\n\nI\tO\n"),
    ):
        (folder / f"oct27.{part}").write_text(text)
    (folder / "brown_clusters_6mpaths.txt").write_text("01\ti\t9\n0\t<@MENTION>\t8\n011\tbet\t2\n")


def vectors(folder, *names: str) -> None:
    (folder / "embeddings").mkdir(parents=True)
    for name in names:
        if name.endswith(".npz"):
            np.savez(folder / "embeddings" / name, words=np.array(["eu", "bonn"]), vectors=np.ones((2, 3)))
        else:
            (folder / "embeddings" / name).write_text(VECTORS)


GLOVE, TWEETS = "glove6B_100d_taskvocab_fp16.npz", "glove_twitter_27B_100d_top2720.txt"


def test_which_paths_are_column_files(tmp_path):
    assert find_parts(tmp_path / "news.CONLL") == [tmp_path / "news.CONLL"]
    assert find_parts(tmp_path / "music.arff") == []
    assert find_parts(tmp_path) == []
    for name in ("train.txt", "dev.txt", "test.txt", "README.md"):
        (tmp_path / name).touch()
    assert [path.name for path in find_parts(tmp_path)] == ["train.txt", "dev.txt", "test.txt"]
    (tmp_path / "valid.conll").touch()
    assert [path.name for path in find_parts(tmp_path)] == ["train.txt", "valid.conll", "test.txt"]
    images = tmp_path / "images"
    for part in ("train", "valid", "test"):
        (images / part).mkdir(parents=True)
    assert find_parts(images) == []


def test_columns_by_name_or_place(tmp_path):
    path = tmp_path / "news.conll"
    path.write_text(NEWS)
    data, split = read_sentences([path])
    assert split is None
    assert data.tokens[0] == ("EU", "hails", "Bonn")
    assert data.columns == {"column2": (("NNP", "VBZ", "NNP"), ("NNP", "NNP", "VBZ"))}
    data, split = read_sentences([path, path, path], ("word", "pos", "tag"))
    assert list(data.columns) == ["pos"]
    assert split.valid.tolist() == [2, 3]
    with pytest.raises(DataError, match=r"news\.conll:1: 3 column\(s\) where 2 are expected"):
        read_sentences([path], ("word", "tag"))
    path.write_text("EU NNP O\n\nEU O\n")
    with pytest.raises(DataError, match=r"news\.conll:3: 2 column\(s\) where 3 are expected"):
        read_sentences([path])
    path.write_text("EU\n")
    with pytest.raises(DataError, match=r"news\.conll:1: 1 column"):
        read_sentences([path])


def test_conll_2003(tmp_path):
    conll(tmp_path / "conll2003")
    vectors(tmp_path, GLOVE)
    loaded = load("conll2003", tmp_path)
    assert loaded.split_name == "files"
    assert isinstance(loaded.train, TaggedSentences)
    lexicon, tags = loaded.task.input.lexicon, loaded.task.output.tag_set
    assert lexicon is loaded.train.source.lexicon is loaded.test.source.lexicon
    assert tags is loaded.test.target.tag_set
    assert tags.scheme == "IOB1"
    assert tags.names[:5] == ("O", "B-LOC", "I-LOC", "E-LOC", "S-LOC")
    assert len(tags.names) == 9
    assert loaded.train.tags[0] == ("S-ORG", "O", "S-LOC")
    assert lexicon.words.strings == ("eu", "bonn", "hails")
    np.testing.assert_array_equal(loaded.task.input.vectors, [[0] * 3, [0] * 3, [1] * 3, [1] * 3, [0] * 3])
    assert str(loaded.coverage[0]).startswith(f"{GLOVE}: 66.7 % of tokens (lower case 66.7)")
    assert lexicon.width == 1
    assert list(load("conll2003", tmp_path, features="ner+").task.input.lexicon.features) == [
        "case",
        "pos",
        "chunk",
    ]
    assert load("conll2003", tmp_path, features="ner++").task.input.lexicon.width == 24
    some = load("conll2003", tmp_path, features="pos, characters").task.input.lexicon
    assert (some.columns, some.word_length) == (("pos",), 20)


def test_tweets(tmp_path):
    tweets(tmp_path / "twitter_pos")
    vectors(tmp_path, GLOVE, TWEETS)
    loaded = load("twitter-pos", tmp_path, features="pos+")
    assert (len(loaded.train), len(loaded.valid), len(loaded.test)) == (2, 1, 2)
    assert loaded.task.output.names == ("@", "O", "V")
    assert loaded.task.output.tag_set.scheme is None
    assert loaded.task.input.lexicon.clusters["<user>"] == "0"
    assert loaded.task.input.vectors.shape == (4, 5)  # both tables side by side
    assert [report.name for report in loaded.coverage] == [TWEETS, GLOVE]


def test_names_may_be_read_with_the_clusters_of_tweets(tmp_path):
    conll(tmp_path / "conll2003")
    tweets(tmp_path / "twitter_pos")
    loaded = load("conll2003", tmp_path, features="case,brown4", embeddings=[])
    assert list(loaded.task.input.lexicon.features) == ["case", "brown4"]
    assert loaded.task.input.lexicon.clusters["bet"] == "011"
    assert not load("conll2003", tmp_path, features="ner+", embeddings=[]).task.input.lexicon.clusters


def test_vectors_are_not_required(tmp_path):
    conll(tmp_path / "conll2003")
    with pytest.warns(UserWarning, match="word vectors for 'conll2003' are in none of .*--embeddings"):
        loaded = load("conll2003", tmp_path)
    assert loaded.task.input.vectors is None
    assert loaded.task.input.lexicon.words.strings == ("EU", "hails", "Bonn")
    mine = tmp_path / "mine.txt"
    mine.write_text(VECTORS)
    assert load("conll2003", tmp_path, embeddings=[mine, mine]).task.input.vectors.shape == (5, 4)
    assert load("conll2003", tmp_path, embeddings=[]).task.input.vectors is None


def test_files_of_ones_own(tmp_path):
    for name in ("train.txt", "dev.txt", "test.txt"):
        (tmp_path / name).write_text(NEWS.replace("I-", "B-"))
    loaded = load(tmp_path)
    assert loaded.name == tmp_path.name
    assert loaded.split_name == "files"
    assert loaded.task.output.tag_set.scheme == "IOB2"
    assert list(loaded.task.input.lexicon.features) == ["case"]
    assert loaded.task.input.lexicon.word_length == 20
    assert load(tmp_path, features="column2").task.input.lexicon.columns == ("column2",)
    path = tmp_path / "news.conll"
    path.write_text(NEWS * 5)
    assert load(path).split_name == "random(seed=0)"
    assert len(load(path).train) == 6
    rows = {"train": [0, 1], "valid": [2], "test": [3]}
    (tmp_path / "mine.json").write_text(json.dumps(rows))
    assert len(load(path, split=tmp_path / "mine.json").train) == 2


def test_a_task_may_be_given(tmp_path):
    conll(tmp_path / "conll2003")
    loaded = load("conll2003", tmp_path, embeddings=[], features="ner+")
    kept = Task.from_state(*json.loads(json.dumps(loaded.task.state())))
    again = load("conll2003", tmp_path, task=kept)
    assert again.task is kept
    assert again.test.source.lexicon is kept.input.lexicon
    assert kept.is_like(loaded.task)
    mine, theirs = again.test.batch(np.arange(2)), loaded.test.batch(np.arange(2))
    assert all(part.equal(other) for part, other in zip(mine[:3], theirs[:3], strict=True))


def test_descriptions(tmp_path):
    conll(tmp_path / "conll2003")
    shown = describe("conll2003", tmp_path)
    assert shown.instances == {"train": 2, "valid": 2, "test": 2}
    assert shown.facts["tokens"]["test"] == 6
    assert (shown.facts["longest"], shown.facts["tags"], shown.facts["scheme"]) == (3, 3, "IOB1")
    assert shown.facts["frequent_tags"][0][1] == 6
    assert "ner+: words, case, pos, chunk" in shown.facts["features"]
    tweets(tmp_path / "twitter-pos")
    assert describe("twitter-pos", tmp_path).facts["scheme"] == "no spans"


def test_what_does_not_go_together(tmp_path):
    conll(tmp_path / "conll2003")
    with pytest.raises(
        DataError, match="no feature 'colour' in 'conll2003'; choose ner or ner\\+ or ner\\+\\+"
    ):
        load("conll2003", tmp_path, features="colour", embeddings=[])
    with pytest.raises(DataError, match=r"Brown clusters, which come with 'twitter-pos' and are in none of"):
        load("conll2003", tmp_path, features="brown4", embeddings=[])
    with pytest.raises(DataError, match="'digits-pairs' has no sentences"):
        load("digits-pairs", features="case")
    with pytest.raises(DataError, match="'digits-pairs' has no sentences"):
        load("digits-pairs", embeddings=["glove.txt"])
    path = tmp_path / "news.conll"
    path.write_text(NEWS)
    with pytest.raises(DataError, match="tags in the last column"):
        load(path, labels="tag")
    with pytest.raises(DataError, match="no folder of images"):
        load(path, resize=(3, 3))
    path.write_text("a S-X\nb E-X\n\n" * 9)
    with pytest.raises(DataError, match="sentence 1: 'E-X' of token 2 is wrong in BIOES"):
        load(path)


@pytest.mark.filterwarnings("ignore:.*cut short")
def test_the_real_sets(real_data):
    loaded = load("twitter-pos", real_data, features="pos++")
    assert (len(loaded.train), len(loaded.valid), len(loaded.test)) == (1000, 327, 500)
    assert len(loaded.task.output.names) == 25
    assert loaded.task.input.vectors.shape[1] == 200
    assert sum(loaded.coverage[1].tokens.values()) > 0.85
    loaded = load("conll2003", real_data, features="ner")
    assert (len(loaded.train), len(loaded.valid), len(loaded.test)) == (14041, 3250, 3453)
    assert len(loaded.task.output.names) == 17
    assert sum(loaded.coverage[0].tokens.values()) > 0.985


def test_other_clusters_are_other_data_where_features_are_made_of_them(tmp_path):
    tweets(tmp_path / "twitter_pos")
    clusters = tmp_path / "twitter_pos" / "brown_clusters_6mpaths.txt"
    found = {}
    for bits in ("011", "010"):
        clusters.write_text(f"01\ti\t9\n{bits}\tbet\t2\n")
        for features in ("brown4", "case"):
            data = load("twitter-pos", data_dir=tmp_path, features=features, embeddings=())
            found[features, bits] = data.digest
    assert found["brown4", "011"] != found["brown4", "010"]
    assert found["case", "011"] == found["case", "010"]
