"""Digests tell data apart by what they hold, and by nothing else."""

import subprocess
import sys
import time

import numpy as np
import pytest
from scipy import sparse

from lossnet.data import Embeddings, Examples, MaskData, MultiLabelData, TaggedSentences, digest
from lossnet.loading import load

X = np.array([[0.5, 0.0, np.nan], [0.0, -2.0, 0.0]], dtype=np.float32)
Y = np.array([[1, 0], [1, 1]])


def rows(x=X, y=Y, features=("a", "b", "c"), labels=("p", "q")):
    return MultiLabelData.from_arrays(x, y, features, labels)


def tagged(tokens=(("Ann", "ran"), ("Bo",)), tags=(("N", "V"), ("N",)), columns=None):
    return TaggedSentences(tokens, tags, columns)


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


IMAGES, MASKS = np.full((2, 1, 3, 4), 0.5, np.float32), np.ones((2, 3, 4))
DIFFERENT = {
    "rows": rows(),
    "a value": rows(changed(X, (1, 1), -2.5)),
    "a value elsewhere": rows(X[:, ::-1].copy()),
    "a label": rows(y=changed(Y, (0, 1), 1)),
    "a row's order": rows(X[::-1].copy(), Y[::-1].copy()),
    "an input's name": rows(features=("a", "b", "d")),
    "a label's name": rows(labels=("p", "r")),
    "names cut elsewhere": rows(features=("a", "b", "c"), labels=("pq", "")),
    "fewer rows": rows(X[:1], Y[:1]),
    "sparse rows": rows(sparse.csr_array(X)),
    "a sparse value elsewhere": rows(sparse.csr_array(X[:, ::-1].copy())),
    "sentences": tagged(),
    "a token": tagged((("Ann", "run"), ("Bo",))),
    "a tag": tagged(tags=(("N", "N"), ("N",))),
    "no tags": Examples(tagged().source),
    "sentences cut elsewhere": tagged((("Ann",), ("ran", "Bo")), (("N",), ("V", "N"))),
    "a column": tagged(columns={"pos": (("N", "V"), ("N",))}),
    "labels of sentences": Examples(tagged().source, rows().target),
    "labels of images": Examples(MaskData(IMAGES, MASKS).source, rows().target),
    "no labels": Examples(rows().source),
    "images": MaskData(IMAGES, MASKS),
    "a pixel": MaskData(changed(IMAGES, (1, 0, 2, 3), 0.25), MASKS),
    "a pixel's mask": MaskData(IMAGES, changed(MASKS, (1, 2, 3), 0)),
    "vectors": Embeddings("v", ("a", "b"), np.eye(2, dtype=np.float32)),
    "other vectors": Embeddings("v", ("b", "a"), np.eye(2, dtype=np.float32)),
    "clusters": {"a": "01", "b": "1"},
    "another cluster": {"a": "00", "b": "1"},
}


def test_whatever_is_different_is_noticed():
    found = {name: digest(data) for name, data in DIFFERENT.items()}
    assert len(set(found.values())) == len(found), found
    assert digest(rows(), tagged()) != digest(tagged(), rows())


def test_how_it_is_kept_does_not_count():
    wide = sparse.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    assert digest(rows(wide)) == digest(rows(sparse.csr_array(X)))
    assert digest(rows(np.asfortranarray(X))) == digest(rows(X.astype(np.float64))) == digest(rows())


def test_it_is_the_same_everywhere():
    """These were computed once; another machine or version that finds others would refuse its checkpoints."""
    expected = {
        "rows": "225c7b7db880307d",
        "sparse rows": "2be60bc916385a5a",
        "sentences": "d3f46e27e23d9247",
        "images": "8c6655fe16815773",
        "vectors": "b9583334c1f6a120",
    }
    assert {name: digest(DIFFERENT[name]) for name in expected} == expected


def test_another_process_finds_the_same():
    program = "from lossnet.loading import load; print(load('digits-pairs').digest)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == load("digits-pairs").digest, run.stderr


def test_many_sparse_rows_take_little():
    """20 million values; reading them takes far longer."""
    count, each = 200_000, 100
    columns = np.tile(np.arange(each, dtype=np.int32) * 7, count)
    starts = np.arange(count + 1) * each
    x = sparse.csr_array((np.ones(count * each, np.float32), columns, starts), shape=(count, 1000))
    data = MultiLabelData.from_arrays(x, sparse.csr_array((count, 3)))
    started = time.process_time()
    digest(data)
    assert time.process_time() - started < 3


@pytest.mark.parametrize("where", ["values", "split"])
def test_loaded_files_are_told_apart(tmp_path, where):
    text = "a,l\n" + "".join(f"{i * i % 7},{i % 2}\n" for i in range(20))
    for folder in ("one", "same", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.csv").write_text(text)
    split = {}
    if where == "values":
        (tmp_path / "other" / "mine.csv").write_text(text.replace("\n4,", "\n5,", 1))
    else:
        (tmp_path / "rows.json").write_text('{"train": [0, 1, 2, 3], "valid": [4, 5], "test": [6, 7]}')
        split = {"split": tmp_path / "rows.json"}
    one, same = (load(tmp_path / folder / "mine.csv", labels="l") for folder in ("one", "same"))
    other = load(tmp_path / "other" / "mine.csv", labels="l", **split)
    assert one.digest == same.digest != other.digest
