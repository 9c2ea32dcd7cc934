from __future__ import annotations

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from lossnet.cli import main
from lossnet.data import (
    DataError,
    Entry,
    MaskData,
    MultiLabelData,
    Split,
    entry,
    find,
    names,
    registry,
)
from lossnet.data.download import fetch
from lossnet.data.registry import _ENTRIES
from lossnet.inputs import Features
from lossnet.loading import describe, load
from lossnet.outputs import Labels
from lossnet.task import Task

ROWS = 30


def mulan(folder, name: str, xml: bool = True, first: str = "") -> None:
    """A small file in the format of the named set, with its XML list or MEKA's count."""
    folder.mkdir(parents=True)
    head = "@relation r\n" if xml else "@relation 'r: -C -2'\n"
    head += first + "@attribute w {0,1}\n@attribute v numeric\n"
    head += "@attribute TAG_a {0,1}\n@attribute TAG_b {0,1}\n@data\n"
    own = "p1," if first else ""
    rows = [f"{own}{i % 2},{i},{i % 3 == 0:d},{i % 5 > 0:d}" for i in range(ROWS)]
    (folder / f"{name}.arff").write_text(head + "\n".join(rows) + "\n")
    if xml:
        text = '<labels><label name="TAG_a"/><label name="TAG_b"/></labels>'
        (folder / f"{name}.xml").write_text(text)


@pytest.mark.parametrize("below", ["", "mlc"])
@pytest.mark.parametrize(("name", "xml"), [("bookmarks", True), ("eurlexev", False), ("bibtex", True)])
def test_named_files(tmp_path, name, xml, below):
    mulan(tmp_path / below / name, name, xml)
    loaded = load(name, tmp_path)
    assert loaded.name == name
    assert loaded.split_name == "stratified(seed=0)"
    assert len(loaded.train) + len(loaded.valid) + len(loaded.test) == ROWS
    assert loaded.train.label_names == ("TAG_a", "TAG_b")
    assert loaded.task.input.preprocessor.mean is None
    assert load(name, tmp_path, seed=3).split_name == "stratified(seed=3)"


def test_where_files_are_looked_for(tmp_path, monkeypatch):
    for place in ("given", "named", "cache/lossnet"):
        mulan(tmp_path / place / "emotions", "emotions")
    monkeypatch.setenv("LOSSNET_DATA", str(tmp_path / "named"))
    assert find("emotions", tmp_path / "given") == tmp_path / "given" / "emotions"
    assert find("emotions", tmp_path / "none") == tmp_path / "named" / "emotions"
    monkeypatch.delenv("LOSSNET_DATA")
    assert find("emotions") == tmp_path / "cache/lossnet/emotions"
    assert find("bibtex") is None


def test_splits_by_file(tmp_path):
    mulan(tmp_path / "emotions", "emotions")
    rows = np.arange(ROWS)
    Split(rows[:10], rows[10:12], rows[12:15]).write(tmp_path / "emotions" / "split.json")
    loaded = load("emotions", tmp_path)
    assert loaded.split_name == "split.json"
    assert (len(loaded.train), len(loaded.valid), len(loaded.test)) == (10, 2, 3)
    np.testing.assert_allclose(loaded.train.x[:, 1].mean(), 0, atol=1e-6)  # by the training rows
    np.testing.assert_allclose(loaded.train.x[:, 1].std(), 1, rtol=1e-5)
    assert set(loaded.train.x[:, 0]) == {0, 1}
    Split(rows[:3], rows[3:4], rows[4:5]).write(tmp_path / "mine.json")
    mine = load("emotions", tmp_path, split=tmp_path / "mine.json")
    assert mine.split_name == "mine.json"
    assert len(mine.train) == 3
    own = load("digits-pairs", split=tmp_path / "mine.json")
    assert len(own.train) == 3


def test_a_row_name_is_dropped(tmp_path):
    mulan(tmp_path / "genbase", "genbase", first="@attribute protein {p1,p2,p3}\n")
    assert load("genbase", tmp_path).train.feature_names == ("w", "v")


def clus(folder, labels="01,01/02") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", 4), ("valid", 2), ("test", 3)):
        declared = labels if part == "test" else "01,01/02"
        head = "@relation r\n@attribute a numeric\n@attribute b {x,y}\n"
        head += f"@attribute class hierarchical {declared}\n@data\n"
        body = "".join(f"{i if i else '?'},{'xy'[i % 2]},01{'/02' * (i % 2)}\n" for i in range(rows))
        (folder / f"spo_FUN.{part}.arff").write_text(head + body)


def test_sets_in_three_files(tmp_path):
    clus(tmp_path / "spo_fun")
    loaded = load("spo_fun", tmp_path)
    assert loaded.split_name == "files"
    assert (len(loaded.train), len(loaded.valid), len(loaded.test)) == (4, 2, 3)
    assert loaded.train.label_names == ("root", "01", "01/02")
    assert loaded.task.input.preprocessor.mean is not None
    np.testing.assert_allclose(loaded.task.input.preprocessor.impute, [2, 0.5, 0.5])
    np.testing.assert_allclose(loaded.test.x[0], [0, 1, 0])  # missing: the training mean
    clus(tmp_path / "spo_fun", labels="01,01/02,03")
    with pytest.raises(DataError, match=r"spo_FUN\.test\.arff: its attributes are not those"):
        load("spo_fun", tmp_path)


def test_paths(tmp_path):
    path = tmp_path / "films.csv"
    rows = "".join(f"{i},{'ab'[i % 2]},{i % 2},{i % 3 > 0:d}\n" for i in range(20))
    path.write_text("size,kind,l_a,l_b\n" + rows)
    loaded = load(path, labels="l_*", seed=4)
    assert loaded.name == "films.csv"
    assert loaded.split_name == "stratified(seed=4)"
    assert loaded.task.input.preprocessor.mean is not None
    plain = Task(Features(loaded.train.feature_names), Labels(loaded.train.label_names))
    assert load(path, labels="l_*", task=plain).task is plain
    assert load(path, labels="l_*", task=plain).train.x.max() > loaded.train.x.max()  # as they are
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "other.csv", labels="l_*")


def test_unknown_names():
    with pytest.raises(DataError, match=r"'bibtext'; did you mean bibtex\? known are bibtex, deli"):
        load("bibtext")
    with pytest.raises(DataError, match=r"known are .*digits-pairs"):
        load("xyzzy")
    with pytest.raises(DataError, match="are for files"):
        load("digits-pairs", labels=["a"])


@pytest.mark.parametrize("name", [n for n in names() if not n.startswith("digits")])
def test_absent_files_say_what_to_do(tmp_path, name, monkeypatch):
    asked = []

    def offline(url, sha256, path, progress):
        asked.append(url)
        raise DataError("no network", path)

    monkeypatch.setattr(registry, "fetch", offline)
    with pytest.raises(DataError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert ("no network" in message) == bool(entry(name).urls) == bool(asked)
    for part in (*entry(name).files, str(tmp_path / name), entry(name).home, "LOSSNET_DATA"):
        assert part in message


def test_description(tmp_path):
    mulan(tmp_path / "emotions", "emotions")
    told = describe("emotions", tmp_path)
    assert sum(told.instances.values()) == ROWS
    assert (told.facts["inputs"], told.facts["labels"]) == (2, 2)
    assert told.facts["labels_per_instance"] == pytest.approx((10 + 24) / 30)
    assert told.facts["density"] == pytest.approx(34 / 60)
    assert told.facts["frequent_labels"] == (("TAG_b", 24), ("TAG_a", 10))
    assert told.home.startswith("https://mulan")


def horses(folder, counts=(6, 3, 4), size=(8, 9)) -> None:
    """A small archive in the format of the horses."""
    folder.mkdir(parents=True)
    arrays = {}
    for part, count in zip(("train", "val", "test"), counts, strict=True):
        arrays[f"{part}_images"] = np.full((count, *size, 3), 51, dtype=np.uint8)
        arrays[f"{part}_masks"] = np.zeros((count, *size), dtype=np.uint8)
        arrays[f"{part}_masks"][:, : size[0] // 4] = 1
        arrays[f"{part}_idx"] = np.arange(count)
    np.savez(folder / "horses32_splits.npz", **arrays)


@pytest.mark.parametrize("folder", ["horses", "weizmann_horses"])
def test_horses(tmp_path, folder):
    horses(tmp_path / folder)
    loaded = load("horses", tmp_path)
    assert find("horses", tmp_path) == tmp_path / folder
    assert all(isinstance(part, MaskData) for part in (loaded.train, loaded.valid, loaded.test))
    assert (len(loaded.train), len(loaded.valid), len(loaded.test)) == (6, 3, 4)
    assert loaded.split_name == "files"
    assert (loaded.train.channels, loaded.train.size) == (3, (8, 9))
    np.testing.assert_allclose(loaded.train.images, 0.2, rtol=1e-6)
    Split(*(np.array([row]) for row in (12, 0, 6))).write(tmp_path / "mine.json")
    assert len(load("horses", tmp_path, split=tmp_path / "mine.json").train) == 1


def test_images_in_a_folder_or_an_archive(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for kind in ("images", "masks"):
        (tmp_path / "cats" / kind).mkdir(parents=True)
        for row in range(10):
            image.new("L", (5, 4 + row % 2), 255).save(tmp_path / "cats" / kind / f"{row}.png")
    with pytest.raises(DataError, match="resize"):
        load(tmp_path / "cats")
    loaded = load(tmp_path / "cats", resize=(4, 4), seed=2)
    assert (loaded.name, loaded.split_name) == ("cats", "random(seed=2)")
    assert (len(loaded.train), len(loaded.valid), len(loaded.test)) == (6, 2, 2)
    assert loaded.test.size == (4, 4)
    np.savez(tmp_path / "cats.npz", images=np.zeros((10, 4, 4)), masks=np.zeros((10, 4, 4)))
    assert isinstance(load(tmp_path / "cats.npz").train, MaskData)
    horses(tmp_path / "elsewhere")
    assert load(tmp_path / "elsewhere" / "horses32_splits.npz").split_name == "files"
    for path in (tmp_path / "cats.npz", tmp_path / "cats"):
        with pytest.raises(DataError, match="leave labels=, --labels out"):
            load(path, labels=["a"])


def test_archives_of_labels_are_still_that(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.eye(10), y=np.eye(10, dtype=int))
    assert isinstance(load(tmp_path / "a.npz").train, MultiLabelData)
    with pytest.raises(DataError, match="no folder of images"):
        load(tmp_path / "a.npz", resize=(4, 4))
    for name in ("digits-pairs", "digits-scenes"):
        with pytest.raises(DataError, match="read as it is; resize=, --resize are for files"):
            load(name, resize=(4, 4))


def test_description_of_images(tmp_path, capsys, monkeypatch):
    horses(tmp_path / "horses")
    told = describe("horses", tmp_path)
    assert told.instances == {"train": 6, "valid": 3, "test": 4}
    facts = told.facts
    assert (facts["size"], facts["channels"], facts["foreground"]) == ("8×9", 3, 0.25)
    assert told.terms == "cite Borenstein & Ullman 2004"
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["data", "show", "horses", "--data-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for words in ("train 6, valid 3, test 4", "8×9", "0.25", "Borenstein", "foreground"):
        assert words in shown


@pytest.fixture
def server(tmp_path):
    """A web server over ``tmp_path/served``, and its address."""
    (tmp_path / "served").mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = partial(Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("progress", [False, True])
def test_downloads(tmp_path, server, monkeypatch, progress):
    mulan(tmp_path / "served" / "small", "small")
    served = [tmp_path / "served" / "small" / file for file in ("small.arff", "small.xml")]
    urls = {file.name: f"{server}/small/{file.name}" for file in served}
    sha256 = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in served}
    files = {"files": ("small.arff",), "beside": ("small.xml",)}
    small = Entry("small", "a test", **files, urls=urls, sha256=sha256)
    monkeypatch.setitem(_ENTRIES, "small", small)
    loaded = load("small", progress=progress)
    assert loaded.train.labels == 2
    kept = tmp_path / "cache" / "lossnet" / "small"
    assert find("small") == kept
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch(f"{server}/nothing", "0" * 64, kept / "nothing", progress=False)
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch(urls["small.arff"], "0" * 64, kept / "wrong.arff", progress=False)
    assert not (kept / "wrong.arff").exists()


REAL = {
    "bibtex": (7395, 1836, 159), "delicious": (16091, 500, 983), "genbase": (662, 1185, 27),
    "cal500": (502, 68, 174), "emotions": (593, 72, 6), "expr_fun": (3779, 561, 500),
    "spo_fun": (3703, 86, 500),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REAL))
def test_real_sets(real_data, name):
    if find(name, real_data) is None:
        pytest.skip(f"{name} is not in {real_data}")
    for file, digest in entry(name).sha256.items():
        content = (find(name, real_data) / file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
    loaded = load(name, real_data)
    rows = len(loaded.train) + len(loaded.valid) + len(loaded.test)
    assert rows == REAL[name][0]
    assert (loaded.test.inputs, loaded.test.labels) == REAL[name][1:]
    assert not any(part.has_missing for part in (loaded.train, loaded.valid, loaded.test))
    assert loaded.split_name == ("files" if name.endswith("_fun") else "split.json")


def test_real_horses(real_data):
    if find("horses", real_data) is None:
        pytest.skip(f"horses are not in {real_data}")
    content = (find("horses", real_data) / "horses32_splits.npz").read_bytes()
    assert hashlib.sha256(content).hexdigest() == entry("horses").sha256["horses32_splits.npz"]
    loaded = load("horses", real_data)
    assert [len(part) for part in (loaded.train, loaded.valid, loaded.test)] == [160, 40, 128]
    assert (loaded.test.channels, loaded.test.size) == (3, (32, 32))
    assert describe("horses", real_data).facts["foreground"] == pytest.approx(0.2765, abs=1e-3)


def test_downloads_are_pinned_to_the_files_we_know():
    found = [entry(name) for name in names() if entry(name).urls]
    assert {one.name for one in found} == {"bibtex", "delicious", "cal500", "emotions"}
    for one in found:
        assert set(one.urls) == set(one.sha256)
        assert all(url.endswith("/" + file) for file, url in one.urls.items())
