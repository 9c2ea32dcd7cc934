"""The data sets by name: what they are, where to get them, how to read and split them."""

from __future__ import annotations

import difflib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Generic

import numpy as np
import pooch
from numpy.typing import NDArray
from scipy import sparse
from typing_extensions import TypeVar

from lossnet.data import embedded
from lossnet.data.dataset import MultiLabelData
from lossnet.data.digest import digest
from lossnet.data.download import Download, fetch
from lossnet.data.embeddings import Coverage, Embeddings, read_embeddings
from lossnet.data.errors import DataError
from lossnet.data.image_files import holds_images, read_images
from lossnet.data.images import MaskData
from lossnet.data.preprocess import Preprocessor
from lossnet.data.readers import read
from lossnet.data.readers.clusters import read_clusters
from lossnet.data.schemes import detect
from lossnet.data.sentence_files import find_parts, read_sentences
from lossnet.data.sentences import Lexicon, Sentences, encode_parts
from lossnet.data.splits import Split, stratified_split

__all__ = [
    "Description",
    "Entry",
    "Loaded",
    "MaskDescription",
    "TagDescription",
    "describe",
    "entry",
    "find",
    "load",
    "names",
]

ENVIRONMENT_VARIABLE = "LOSSNET_DATA"
_MULAN = "https://mulan.sourceforge.net/datasets-mlc.html"
#: a public copy of Mulan's sets as plain files; the second address serves its large ones
_MIRROR = "https://raw.githubusercontent.com/mrapp-ke/Boomer-Datasets"
_MIRROR_LARGE = "https://media.githubusercontent.com/media/mrapp-ke/Boomer-Datasets"
_CLUS = "https://dtai.cs.kuleuven.be/clus/hmcdatasets/"
_EURLEX = "http://www.ke.tu-darmstadt.de/resources/eurlex"

_GLOVE = "glove6B_100d_taskvocab_fp16.npz"
_TWEETS, _TWEET_CLUSTERS = "twitter-pos", "brown_clusters_6mpaths.txt"
_BROWN = ("brown4", "brown8", "brown12", "brown16")

AnyPath = str | PathLike[str]
#: what the parts of a set are; where it is not said, it may be either
Data = TypeVar("Data", bound=MultiLabelData | MaskData | Sentences, default=Any)


@dataclass(frozen=True)
class Entry:
    """A data set the registry knows.

    ``files`` is one file, or a train, a valid and a test file; ``beside`` comes with them.  They are in a
    folder of the set's name or called one of ``folders``.  ``layout`` says what is in files that must be
    made by hand.  ``sha256`` are checksums of the files we tested with.  ``make`` builds a set that has
    no files.

    A set of sentences says what its ``columns`` are, ``word`` and ``tag`` among them; which ``features``
    (of `Lexicon`) it may be read with, the first by default; where Brown ``clusters`` are for those that need
    them, a set's name and its file; and which ``embeddings`` suit it, files in a folder of that name beside
    the set's.
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
    columns: tuple[str, ...] = ()
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clusters: tuple[str, str] | None = None
    embeddings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Loaded(Generic[Data]):
    """A data set ready to train on: its three parts, preprocessed as the training part says.

    Images and sentences are left as they are: their preprocessor has no columns and does nothing.
    Sentences come with the ``vectors`` of their lexicon's words, ``(words, dimensions)``, zeros where there
    is none, and with how much of the text each table of vectors covers.  The ``digest`` stands for what was
    read, see `lossnet.data.digest`; it is empty for data from elsewhere.
    """

    name: str
    description: str
    train: Data
    valid: Data
    test: Data
    preprocessor: Preprocessor
    split_name: str
    vectors: NDArray[np.float32] | None = None
    coverage: tuple[Coverage, ...] = ()
    digest: str = ""


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


@dataclass(frozen=True)
class TagDescription:
    """A set of tagged sentences in numbers; ``scheme`` is how its tags mark spans, if they do."""

    name: str
    description: str
    split_name: str
    instances: dict[str, int]
    tokens: dict[str, int]
    longest: int
    tags: int
    scheme: str
    frequent_tags: tuple[tuple[str, int], ...]
    features: str
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
        Entry(
            _TWEETS,
            "parts of speech of words in tweets; tags",
            files=("oct27.train", "oct27.dev", "oct27.test"),
            beside=(_TWEET_CLUSTERS,),
            folders=("twitter_pos",),
            terms="CC-BY 3.0; cite Gimpel et al. 2011 and Owoputi et al. 2013",
            home="https://github.com/brendano/ark-tweet-nlp",
            sha256={
                "oct27.train": "e55a63da62838a28b308bd1be0b5c903ac242ef208dc59838f4b39aa33b11948",
                "oct27.dev": "046e9c57ed2549b4dec08a9a7bccf8ec7f742faaa7b55d840408f2dfd1356851",
                "oct27.test": "77f868fcd300d0acdd7bb8db28c961fcbe50d9cd0d48046e8fbec4b9f86bf814",
                _TWEET_CLUSTERS: "63961360681878565b08906ff943491ae035496fc8d74fa669a2c35904f8cecc",
            },
            columns=("word", "tag"),
            features={
                "pos": (),
                "pos+": ("shape", *_BROWN),
                "pos++": ("shape", *_BROWN, "characters"),
            },
            clusters=(_TWEETS, _TWEET_CLUSTERS),
            embeddings=("glove_twitter_27B_100d_top2720.txt", _GLOVE),
        ),
        Entry(
            "conll2003",
            "names of people, places, organisations and others in English news; tags",
            files=("eng.train", "eng.testa", "eng.testb"),
            layout="a line is a word, its part of speech, its chunk and its name tag in IOB1",
            terms="Reuters' text is for research only; cite Tjong Kim Sang and De Meulder 2003",
            home="https://www.clips.uantwerpen.be/conll2003/ner/",
            sha256={
                "eng.train": "eac0822f501353f265383ddf1edb0dcd42a1b6eefd3e383d7074db98c38eb41c",
                "eng.testa": "aedc4ccbd1ae9795feaa0e86fe72d195b0258abed9d705b630d1c889276fac1e",
                "eng.testb": "0632f32c090ef31c223135b7fee3187a7cf8e65c4015c7866bb7783428cdd9a6",
            },
            columns=("word", "pos", "chunk", "tag"),
            features={
                "ner": (),
                "ner+": ("case", "pos", "chunk"),
                "ner++": ("case", "pos", "chunk", "characters"),
            },
            clusters=(_TWEETS, _TWEET_CLUSTERS),
            embeddings=(_GLOVE,),
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
    features: str | None = None,
    embeddings: Sequence[AnyPath] | None = None,
    lexicon: Lexicon | None = None,
) -> Loaded[Any]:
    """A data set by name, or a file in any format of `lossnet.data.readers`, ready to train on.

    A named set is looked for in ``data_dir``, then where the environment variable ``LOSSNET_DATA``
    points, then in the user's cache, where it is downloaded to if it can be.  Rows are split by
    ``split``, a file for `Split.read`; else by the ``split.json`` beside a named set or by its own
    files; else by `stratified_split` with ``seed``.  ``labels`` says which columns of a file are
    labels.  The ``preprocessor`` is fitted on the training rows unless one is given: it standardises where
    that suits the named set, and files that are dense.

    A folder of images and masks, or an archive of them, is read by `lossnet.data.image_files`: the parts
    are then `MaskData`.  ``resize`` gives a folder's images one height and width.

    A column file, or a folder with one each for training, validation and test, is read by
    `lossnet.data.sentence_files`: the parts are then `Sentences`.  ``features`` is the name of one of the
    set's lists of features, or a list of features of `Lexicon`, separated by commas; a file's columns
    between the first (words) and the last (tags) are called ``column2`` and so on.  ``embeddings`` are files
    with word vectors, which are joined; by default those that suit the set.  Spans become BIOES.  The
    ``lexicon`` is fitted on the training sentences unless one is given.

    >>> loaded = load("digits-pairs")
    >>> len(loaded.train), len(loaded.valid), len(loaded.test), loaded.split_name
    (1800, 600, 600, 'fixed')
    >>> load("digits-scenes").train.size
    (32, 32)
    """
    raw = _read_raw(name_or_path, data_dir, split, labels, seed, progress, resize)
    train, valid, test = raw.parts
    if isinstance(train, Sentences):
        return _load_sentences(raw, data_dir, features, embeddings, lexicon)
    if features is not None or embeddings is not None:
        what = "has no sentences; features= and embeddings= (--features, --embeddings) are for those"
        raise DataError(f"{fspath(name_or_path)!r} {what}")
    if isinstance(train, MaskData):
        preprocessor = Preprocessor(np.zeros(0))
    else:
        preprocessor = preprocessor or Preprocessor.fit(train, raw.entry.standardise)
        train, valid, test = (preprocessor.apply(part) for part in raw.parts)
    return Loaded(
        raw.entry.name,
        raw.entry.description,
        train,
        valid,
        test,
        preprocessor,
        raw.split_name,
        digest=digest(*raw.parts),  # as read: what is computed may be rounded otherwise elsewhere
    )


def describe(
    name_or_path: AnyPath,
    data_dir: AnyPath | None = None,
    split: AnyPath | None = None,
    labels: Any = None,
    seed: int = 0,
    progress: bool = True,
    frequent: int = 10,
    resize: tuple[int, int] | None = None,
) -> Description | MaskDescription | TagDescription:
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
    if isinstance(first, Sentences):
        tag_counts = Counter(tag for tags in _all_tags(raw.parts) for tag in tags)
        return TagDescription(
            name=raw.entry.name,
            description=raw.entry.description,
            split_name=raw.split_name,
            instances=instances,
            tokens={
                part: sum(map(len, data.tokens)) for part, data in zip(instances, raw.parts, strict=True)
            },
            longest=max(len(sentence) for part in raw.parts for sentence in part.tokens),
            tags=len(tag_counts),
            scheme=detect(_all_tags(raw.parts)) or "no spans",
            frequent_tags=tuple(tag_counts.most_common(frequent)),
            features="; ".join(
                f"{name}: {', '.join(('words', *f))}" for name, f in raw.entry.features.items()
            ),
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
    parts: tuple[Any, ...]  # all three MultiLabelData, or all MaskData, or all Sentences
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
    data: MultiLabelData | MaskData | Sentences
    own: Split | None
    if name not in _ENTRIES and (Path(name).suffix or Path(name).exists() or os.sep in name):
        if files := find_parts(name):
            if labels is not None:
                raise DataError("sentences have tags in the last column; leave labels=, --labels out", name)
            _refuse_resize(resize, name)
            data, own = read_sentences(files)
            features = {"words": ("case", "characters")}
            made = Entry(Path(name).name, f"the sentences in {name}", features=features)
            return _split(made, data, split, seed, own, "files")
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
    if found.columns:
        data, own = read_sentences([folder / file for file in found.files], found.columns)
        return _split(found, data, split, seed, own, "files")
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


def _load_sentences(
    raw: _Raw,
    data_dir: AnyPath | None,
    features: str | None,
    embeddings: Sequence[AnyPath] | None,
    lexicon: Lexicon | None,
) -> Loaded[Sentences]:
    found = raw.entry
    parts: Sequence[Sentences] = raw.parts
    tables: list[Embeddings] = []
    clusters: dict[str, str] = {}
    if lexicon is None:
        paths = _find_embeddings(found, data_dir) if embeddings is None else embeddings
        tables = [read_embeddings(path) for path in paths]
        chosen = _features(found, parts[0], features)
        if set(chosen) & set(_BROWN):
            clusters = _read_clusters(found, data_dir)
        parts = encode_parts(
            parts,
            features=chosen,
            words=tuple(dict.fromkeys(word for table in tables for word in table.words)),
            clusters=clusters,
        )
        assert parts[0].lexicon is not None
        lexicon = parts[0].lexicon
    else:
        scheme = detect(_all_tags(parts)) if lexicon.scheme else None
        parts = [part.in_scheme(scheme).encoded(lexicon) for part in parts]
    tokens = [token for part in parts for sentence in part.tokens for token in sentence]
    train, valid, test = parts
    return Loaded(
        found.name,
        found.description,
        train,
        valid,
        test,
        Preprocessor(np.zeros(0)),
        raw.split_name,
        lexicon.vectors(tables),
        tuple(table.coverage(tokens) for table in tables),
        digest(*raw.parts, *tables, *([clusters] if clusters else [])),
    )


def _all_tags(parts: Iterable[Sentences]) -> list[tuple[str, ...]]:
    return [tags for part in parts for tags in part.tags or ()]


def _features(found: Entry, data: Sentences, wanted: str | None) -> tuple[str, ...]:
    """The features that a name or a list stands for."""
    if wanted is None:
        return next(iter(found.features.values()))
    if wanted in found.features:
        return found.features[wanted]
    chosen = tuple(name.strip() for name in wanted.split(",") if name.strip())
    possible = ["case", "shape", *(_BROWN if found.clusters else ()), *data.columns, "characters"]
    strange = [name for name in chosen if name not in possible]
    if strange:
        what = f"no feature {strange[0]!r} in {found.name!r}; choose {' or '.join(found.features)}"
        raise DataError(f"{what}, or a list of {', '.join(possible)}")
    return tuple(dict.fromkeys(chosen))


def _read_clusters(found: Entry, data_dir: AnyPath | None) -> dict[str, str]:
    assert found.clusters is not None
    name, file = found.clusters
    places = [folder / file for folder in _folders(entry(name), data_dir)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        what = f"{', '.join(_BROWN)} are made of Brown clusters, which come with {name!r}"
        advice = "put that set there, or choose other features"
        raise DataError(f"{what} and are in none of {', '.join(map(str, places))}; {advice}")
    return read_clusters(path)


def _find_embeddings(found: Entry, data_dir: AnyPath | None) -> list[Path]:
    """The files with vectors that suit a set, as far as they are there."""
    paths = []
    for file in found.embeddings:
        places = [root / "embeddings" / file for root in _roots(data_dir)]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            tried = ", ".join(map(str, places))
            what = f"word vectors for {found.name!r} are in none of {tried}"
            advice = "the words they would cover are learned from scratch; pass others as embeddings="
            warnings.warn(f"{what}; {advice} (--embeddings)", stacklevel=4)
        else:
            paths.append(path)
    return paths


def _refuse_resize(resize: tuple[int, int] | None, name: str) -> None:
    if resize is not None:
        raise DataError(f"{name!r} is no folder of images; resize= is for those")


def _split(
    found: Entry,
    data: MultiLabelData | MaskData | Sentences,
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
    elif isinstance(data, MultiLabelData):
        chosen, name = stratified_split(data.y, seed=seed), f"stratified(seed={seed})"
    else:
        chosen, name = stratified_split(np.zeros((len(data), 0)), seed=seed), f"random(seed={seed})"
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
    names = (found.name, f"mlc/{found.name}", *found.folders)
    return [root / name for root in _roots(data_dir) for name in names]


def _roots(data_dir: AnyPath | None) -> list[Path]:
    """The folders that may hold data sets, best first."""
    given = [data_dir, os.environ.get(ENVIRONMENT_VARIABLE) or None]
    roots = [Path(root).expanduser() for root in given if root is not None]
    return [*roots, Path(pooch.os_cache("lossnet"))]


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
