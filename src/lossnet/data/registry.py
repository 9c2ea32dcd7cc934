"""The data sets by name: what they are, where to get them, how to read and split them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Generic

import numpy as np
import pooch
from scipy import sparse
from typing_extensions import TypeVar

from lossnet.data import embedded
from lossnet.data.dataset import MultiLabelData
from lossnet.data.download import Download, fetch
from lossnet.data.errors import DataError
from lossnet.data.image_files import holds_images, read_images
from lossnet.data.images import MaskData
from lossnet.data.preprocess import Preprocessor
from lossnet.data.readers import read
from lossnet.data.splits import Split, stratified_split

__all__ = ["Description", "Entry", "Loaded", "MaskDescription", "describe", "entry", "find", "load", "names"]

ENVIRONMENT_VARIABLE = "LOSSNET_DATA"
_MULAN = "https://mulan.sourceforge.net/datasets-mlc.html"
#: a public copy of Mulan's sets as plain files; the second address serves its large ones
_MIRROR = "https://raw.githubusercontent.com/mrapp-ke/Boomer-Datasets"
_MIRROR_LARGE = "https://media.githubusercontent.com/media/mrapp-ke/Boomer-Datasets"
_CLUS = "https://dtai.cs.kuleuven.be/clus/hmcdatasets/"
_EURLEX = "http://www.ke.tu-darmstadt.de/resources/eurlex"

AnyPath = str | PathLike[str]
#: what the parts of a set are; where it is not said, it may be either
Data = TypeVar("Data", bound=MultiLabelData | MaskData, default=Any)


@dataclass(frozen=True)
class Entry:
    """A data set the registry knows.

    ``files`` is one file, or a train, a valid and a test file; ``beside`` comes with them.  They are in a
    folder of the set's name or called one of ``folders``.  ``layout`` says what is in files that must be
    made by hand.  ``sha256`` are checksums of the files we tested with.  ``make`` builds a set that has
    no files.
    """

    name: str
    description: str
    files: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    layout: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    standardise: bool = False
    terms: str = ""
    home: str = ""
    downloads: tuple[Download, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[], tuple[MultiLabelData | MaskData, Split]] | None = None


@dataclass(frozen=True, eq=False)
class Loaded(Generic[Data]):
    """A data set ready to train on: its three parts, preprocessed as the training part says.

    Images are left as they are: their preprocessor has no columns and does nothing.
    """

    name: str
    description: str
    train: Data
    valid: Data
    test: Data
    preprocessor: Preprocessor
    split_name: str


@dataclass(frozen=True)
class Description:
    """A multi-label data set in numbers."""

    name: str
    description: str
    split_name: str
    instances: dict[str, int]
    inputs: int
    labels: int
    labels_per_instance: float
    density: float
    frequent_labels: tuple[tuple[str, int], ...]
    home: str
    terms: str


@dataclass(frozen=True)
class MaskDescription:
    """A set of images and masks in numbers; ``foreground`` is the share of foreground pixels."""

    name: str
    description: str
    split_name: str
    instances: dict[str, int]
    size: str
    channels: int
    foreground: float
    home: str
    terms: str


def _mulan(
    name: str,
    description: str,
    terms: str,
    hashes: tuple[str, str] | None = None,
    commit: str = "",
    **more: Any,
) -> Entry:
    """A Mulan set; ``commit`` is where the mirror has the very files that the hashes are of."""
    arff, xml = f"{name}.arff", f"{name}.xml"
    sha256 = {} if hashes is None else {arff: hashes[0], xml: hashes[1]}
    more.setdefault("home", _MULAN)
    if commit:
        urls = {arff: f"{_MIRROR_LARGE}/{commit}/{arff}", xml: f"{_MIRROR}/{commit}/{xml}"}
        more["downloads"] = tuple(Download(urls[file], sha256[file], file) for file in (arff, xml))
    return Entry(name, description, files=(arff,), beside=(xml,), terms=terms, sha256=sha256, **more)


def _clus(name: str, prefix: str, description: str, hashes: tuple[str, str, str]) -> Entry:
    files = tuple(f"{prefix}.{part}.arff" for part in ("train", "valid", "test"))
    return Entry(
        name,
        description,
        files=files,
        standardise=True,
        terms="cite Clare 2003 and Vens et al. 2008",
        home=_CLUS,
        sha256=dict(zip(files, hashes, strict=True)),
    )


_ENTRIES = {
    found.name: found
    for found in (
        _mulan(
            "bibtex",
            "tags of BibTeX entries; bags of words",
            "cite Katakis et al. 2008",
            (
                "a282a6d1fb3cdaf39bde3f81cd4e6079850a7a538a6bc44f8b4ed95dfe1e5014",
                "08fe20013c1e75dcf1888c185f5187c95e76495b8518ce289b4d3afce38d1232",
            ),
            commit="e925d705fe09f4ce593cf162e953862d8a0cee76",
        ),
        _mulan(
            "delicious",
            "tags of web pages; bags of words",
            "cite Tsoumakas et al. 2008",
            (
                "b944de0bca910050c11d97eed57d17b073110ea3646a587f3d15d127cf581aab",
                "4e0c0f93c7d86a39b9fca4aaefaa00e9428f2c80277732dfbf03ca48e2c14da2",
            ),
            commit="db86cef9af5ef1d01f5554e689e790a3e1a0637b",
        ),
        _mulan(
            "genbase",
            "families of proteins; which motifs occur",
            "cite Diplaris et al. 2005",
            (
                "cb23052a49191e36e9a59cd661e97d79bed2e3f2583030a206692b57bf1e3671",
                "198e8a1d7070e9603119e02e626cedc589db7577339b307b06f5192047b69eb9",
            ),
            options={"drop": ("protein",)},  # a row number in disguise
        ),
        _mulan(
            "cal500",
            "words for songs; audio features",
            "cite Turnbull et al. 2008",
            (
                "cfe6097ba5fd6e8584e54911ab9783dcab34e898446b7c9370c71d477eae56d3",
                "877e128531268d7661faa3e44f7bb43cbcda829c0895e49879168775b192728c",
            ),
            commit="fb12e0c02e62e7d4a94c5f1f26ba5a66c2f3d674",
            standardise=True,
        ),
        _mulan(
            "emotions",
            "emotions in music; audio features",
            "cite Trohidis et al. 2008",
            (
                "6f2f790047073d1293ac0872c0d55f2dc98b6177802fc96c6b66b309dfee1e4b",
                "dbce8e6ccbbb2fcbfd9e9edbb230d7ed12692c6e13f59fdbc0161fa9b6cf2dc0",
            ),
            commit="082dba2665d701ce74a1291ad3809da789fa5c96",
            standardise=True,
        ),
        _clus(
            "expr_fun",
            "expr_FUN",
            "functions of yeast genes (FunCat); expression levels",
            (
                "100314a68323f03a5fa348d57fbf08b62ddff414a0d4c28881157024750b8134",
                "345aeb499a813118b5da6e43ea51a759f787fa5772f2907f0f789068c0ad82c7",
                "1e7c095a3ce32efa3a81357fd79102e55f282bfa3a4aab40a9c810e5fc4fde0d",
            ),
        ),
        _clus(
            "spo_fun",
            "spo_FUN",
            "functions of yeast genes (FunCat); sporulation",
            (
                "8049c3a620b8fcbbbe3f195ccca7dafb36372fce418d9bfe49d6ffadd4bcf6ca",
                "5ab7eaab567b80144299761abec833aa1a4a1115a347819362d06a149b43b0cf",
                "18a9be63b28d636e767b5886121dee5ddc8ae5a61a05098408d1b8991419f284",
            ),
        ),
        _mulan(
            "eurlexev",
            "EUROVOC descriptors of EU laws; words",
            "cite Loza Mencía and Fürnkranz 2008",
            home=_EURLEX,
        ),
        _mulan("bookmarks", "tags of bookmarks; bags of words", "cite Katakis et al. 2008"),
        Entry(
            "digits-completion",
            "lower half of a digit from its upper half; pixels",
            terms="from scikit-learn's copy of the UCI digits (CC-BY 4.0)",
            home="https://archive.ics.uci.edu/dataset/80",
            make=embedded.digits_completion,
        ),
        Entry(
            "digits-pairs",
            "which two digits are drawn over each other; pixels",
            terms="from scikit-learn's copy of the UCI digits (CC-BY 4.0)",
            home="https://archive.ics.uci.edu/dataset/80",
            make=embedded.digits_pairs,
        ),
        Entry(
            "horses",
            "horses in photographs of 32×32 (Weizmann); masks",
            files=("horses32_splits.npz",),
            folders=("weizmann_horses",),
            layout="horses32_splits.npz holds train_images (160, 32, 32, 3) and train_masks (160, 32, 32) of "
            "uint8, and the same as val_ (40) and test_ (128)",
            terms="cite Borenstein & Ullman 2004",
            home="https://www.msri.org/people/members/eranb/",
            sha256={
                "horses32_splits.npz": "c20cda235d29f9349fe23a43d564163de570b545c5f77e5bd3e77f673988818d"
            },
        ),
        Entry(
            "digits-scenes",
            "digits painted on pieces of photographs; masks",
            terms="from scikit-learn's copies of the UCI digits (CC-BY 4.0) and two photographs (CC-BY 2.0)",
            home="https://scikit-learn.org/stable/datasets/loading_other_datasets.html",
            make=embedded.digits_scenes,
        ),
    )
}


def names() -> tuple[str, ...]:
    """The names `load` knows.

    >>> "bibtex" in names()
    True
    """
    return tuple(_ENTRIES)


def entry(name: str) -> Entry:
    """What the registry knows of a name; an unknown one is an error that suggests others.

    >>> entry("emotions").standardise
    True
    """
    if name in _ENTRIES:
        return _ENTRIES[name]
    close = difflib.get_close_matches(name.lower(), _ENTRIES, n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    what = f"no data set or file is called {name!r}; {hint}known are {', '.join(_ENTRIES)}"
    raise DataError(what)


def load(
    name_or_path: AnyPath,
    data_dir: AnyPath | None = None,
    split: AnyPath | None = None,
    labels: Any = None,
    seed: int = 0,
    progress: bool = True,
    preprocessor: Preprocessor | None = None,
    resize: tuple[int, int] | None = None,
) -> Loaded[Any]:
    """A data set by name, or a file in any format of `lossnet.data.readers`, ready to train on.

    A named set is looked for in ``data_dir``, then where the environment variable ``LOSSNET_DATA``
    points, then in the user's cache, where it is downloaded to if it can be.  Rows are split by
    ``split``, a file for `Split.read`; else by the ``split.json`` beside a named set or by its own
    files; else by `stratified_split` with ``seed``.  ``labels`` says which columns of a file are
    labels.  The ``preprocessor`` is fitted on the training rows unless one is given: it standardises where
    that suits the named set, and files that are dense.

    A folder of images and masks, or an archive of them, is read by `lossnet.data.image_files`: the parts
    are then `MaskData`, else `MultiLabelData`.  ``resize`` gives a folder's images one height and width.

    >>> loaded = load("digits-pairs")
    >>> len(loaded.train), len(loaded.valid), len(loaded.test), loaded.split_name
    (1800, 600, 600, 'fixed')
    >>> load("digits-scenes").train.size
    (32, 32)
    """
    raw = _read_raw(name_or_path, data_dir, split, labels, seed, progress, resize)
    train, valid, test = raw.parts
    if isinstance(train, MaskData):
        preprocessor = Preprocessor(np.zeros(0))
    else:
        preprocessor = preprocessor or Preprocessor.fit(train, raw.entry.standardise)
        train, valid, test = (preprocessor.apply(part) for part in raw.parts)
    return Loaded(raw.entry.name, raw.entry.description, train, valid, test, preprocessor, raw.split_name)


def describe(
    name_or_path: AnyPath,
    data_dir: AnyPath | None = None,
    split: AnyPath | None = None,
    labels: Any = None,
    seed: int = 0,
    progress: bool = True,
    frequent: int = 10,
    resize: tuple[int, int] | None = None,
) -> Description | MaskDescription:
    """A data set in numbers, counted over its three parts.

    >>> describe("digits-pairs").labels_per_instance
    2.0
    >>> describe("digits-scenes").size
    '32×32'
    """
    raw = _read_raw(name_or_path, data_dir, split, labels, seed, progress, resize)
    instances = {part: len(data) for part, data in zip(("train", "valid", "test"), raw.parts, strict=True)}
    first = raw.parts[0]
    if isinstance(first, MaskData):
        return MaskDescription(
            name=raw.entry.name,
            description=raw.entry.description,
            split_name=raw.split_name,
            instances=instances,
            size=f"{first.size[0]}×{first.size[1]}",
            channels=first.channels,
            foreground=float(np.concatenate([part.masks for part in raw.parts]).mean()),
            home=raw.entry.home,
            terms=raw.entry.terms,
        )
    counts = sum(np.asarray(part.y.sum(axis=0, dtype=np.int64)) for part in raw.parts)
    per_instance = float(np.sum(counts)) / sum(instances.values())
    order = np.argsort(-np.asarray(counts), kind="stable")[:frequent]
    return Description(
        name=raw.entry.name,
        description=raw.entry.description,
        split_name=raw.split_name,
        instances=instances,
        inputs=first.inputs,
        labels=first.labels,
        labels_per_instance=per_instance,
        density=per_instance / max(first.labels, 1),
        frequent_labels=tuple((first.label_names[i], int(np.asarray(counts)[i])) for i in order),
        home=raw.entry.home,
        terms=raw.entry.terms,
    )


def find(name: str, data_dir: AnyPath | None = None) -> Path | None:
    """The folder that holds a named set's files, None if no place has them all.

    >>> find("bookmarks", "/nowhere") is None or "there after all"
    True
    """
    found = entry(name)
    for folder in _folders(found, data_dir):
        if found.files and all((folder / file).is_file() for file in found.files):
            return folder
    return None


@dataclass(frozen=True, eq=False)
class _Raw:
    """Three parts as read."""

    entry: Entry
    parts: tuple[Any, ...]  # all three MultiLabelData, or all MaskData
    split_name: str


def _read_raw(
    name_or_path: AnyPath,
    data_dir: AnyPath | None,
    split: AnyPath | None,
    labels: Any,
    seed: int,
    progress: bool,
    resize: tuple[int, int] | None,
) -> _Raw:
    name = fspath(name_or_path)
    data: MultiLabelData | MaskData
    own: Split | None
    if name not in _ENTRIES and (Path(name).suffix or Path(name).exists() or os.sep in name):
        if holds_images(name):
            if labels is not None:
                raise DataError("images have masks for labels; leave labels=, --labels out", name)
            data, own = read_images(name, resize)
            return _split(Entry(Path(name).name, f"the images in {name}"), data, split, seed, own, "files")
        _refuse_resize(resize, name)
        data = read(name, labels)
        made = Entry(Path(name).name, f"the file {name}", standardise=not data.is_sparse)
        return _split(made, data, split, seed)
    found = entry(name)
    if labels is not None:
        raise DataError(f"{name!r} has its own labels; labels=, --labels are for files")
    _refuse_resize(resize, name)
    if found.make is not None:
        data, own = found.make()
        return _split(found, data, split, seed, own, "fixed")
    folder = find(name, data_dir) or _download(found, data_dir, progress)
    if holds_images(folder / found.files[0]):
        data, own = read_images(folder / found.files[0])
        return _split(found, data, split, seed, own, "files")
    parts = [read(folder / file, **found.options) for file in found.files]
    if len(parts) == 3:
        data = _joined(parts, [folder / file for file in found.files])
        ends = np.cumsum([len(part) for part in parts])
        rows = np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1])
        return _split(found, data, split, seed, Split(*rows), "files")
    beside = folder / "split.json"
    if split is None and beside.is_file():
        return _split(found, parts[0], beside, seed)
    return _split(found, parts[0], split, seed)


def _refuse_resize(resize: tuple[int, int] | None, name: str) -> None:
    if resize is not None:
        raise DataError(f"{name!r} is no folder of images; resize= is for those")


def _split(
    found: Entry,
    data: MultiLabelData | MaskData,
    file: AnyPath | None,
    seed: int,
    own: Split | None = None,
    own_name: str = "",
) -> _Raw:
    """Cut the data by the given file, else by its own split, else by stratification."""
    if file is not None:
        chosen, name = Split.read(file, len(data)), Path(file).name
    elif own is not None:
        chosen, name = own, own_name
    elif isinstance(data, MaskData):
        chosen, name = stratified_split(np.zeros((len(data), 0)), seed=seed), f"random(seed={seed})"
    else:
        chosen, name = stratified_split(data.y, seed=seed), f"stratified(seed={seed})"
    return _Raw(found, tuple(data.take(rows) for rows in (chosen.train, chosen.valid, chosen.test)), name)


def _joined(parts: list[MultiLabelData], paths: list[Path]) -> MultiLabelData:
    first = parts[0]
    for part, path in zip(parts, paths, strict=True):
        if (part.feature_names, part.label_names) != (first.feature_names, first.label_names):
            what = f"its attributes are not those of {paths[0].name}; use files of one release"
            raise DataError(what, path)
    stack = sparse.vstack if first.is_sparse else np.concatenate
    x: Any = stack([part.x for part in parts])
    y = sparse.vstack([part.y for part in parts], format="csr")
    return MultiLabelData(x, y, first.feature_names, first.label_names)


def _folders(found: Entry, data_dir: AnyPath | None) -> list[Path]:
    """Where a set's files may lie, best first."""
    given = [data_dir, os.environ.get(ENVIRONMENT_VARIABLE) or None]
    roots = [Path(root).expanduser() for root in given if root is not None]
    roots.append(Path(pooch.os_cache("lossnet")))
    names = (found.name, f"mlc/{found.name}", *found.folders)
    return [root / name for root in roots for name in names]


def _download(found: Entry, data_dir: AnyPath | None, progress: bool) -> Path:
    """Fetch a set to the cache, or say what is missing, where it was looked for and what to do."""
    failed = ""
    if found.downloads:
        folder = Path(pooch.os_cache("lossnet")) / found.name
        try:
            for item in found.downloads:
                fetch(item, folder, progress)
            return folder
        except DataError as error:
            failed = f"{error}; "
    files = ", ".join((*found.files, *found.beside))
    places = ", ".join(map(str, _folders(found, data_dir)))
    what = f"the files of {found.name!r} ({files}) are in none of {places}"
    where = f"get them from {found.home} and unpack them into DIR/{found.name}/"
    how = f"then pass that DIR as the data directory (--data-dir) or set {ENVIRONMENT_VARIABLE}=DIR"
    layout = f"; {found.layout}" if found.layout else ""
    raise DataError(f"{failed}{what}; {where}, {how}{layout}")
