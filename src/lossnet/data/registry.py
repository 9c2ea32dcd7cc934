"""The data sets by name: what they are, where to get them, how to read and split them."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import pooch

from lossnet.data import embedded
from lossnet.data.download import Download, fetch
from lossnet.data.errors import DataError
from lossnet.data.examples import Examples, concatenated
from lossnet.data.image_files import holds_images, is_labelled, read_images, read_labelled_images
from lossnet.data.readers import read
from lossnet.data.readers.clusters import read_clusters
from lossnet.data.sentence_files import find_parts, is_table, read_labelled_texts, read_sentences
from lossnet.data.splits import Split, stratified_split
from lossnet.data.tables import MultiLabelData

__all__ = [
    "BROWN",
    "TOKEN_FEATURES",
    "Entry",
    "Raw",
    "entry",
    "find",
    "find_clusters",
    "find_embeddings",
    "names",
    "read_raw",
    "split_data",
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
BROWN = ("brown4", "brown8", "brown12", "brown16")
#: what is known of the tokens of other sentences beside the word
TOKEN_FEATURES = {"words": ("case", "characters")}

AnyPath = str | PathLike[str]


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
    make: Callable[[], tuple[Examples, Split]] | None = None
    columns: tuple[str, ...] = ()
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clusters: tuple[str, str] | None = None
    embeddings: tuple[str, ...] = ()


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
                "pos+": ("shape", *BROWN),
                "pos++": ("shape", *BROWN, "characters"),
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
class Raw:
    """The three parts of a data set as read, unprepared."""

    entry: Entry
    parts: tuple[Examples, ...]
    split_name: str


def read_raw(
    name_or_path: AnyPath,
    data_dir: AnyPath | None = None,
    split: AnyPath | None = None,
    labels: Any = None,
    seed: int = 0,
    progress: bool = True,
    resize: tuple[int, int] | None = None,
    words: str | None = None,
) -> Raw:
    """Read and split a data set by name, or a file or folder; see `lossnet.loading.load`."""
    name = fspath(name_or_path)
    if name not in _ENTRIES and (Path(name).suffix or Path(name).exists() or os.sep in name):
        return _read_path(name, split, labels, seed, resize, words)
    known = entry(name)
    for given, option in ((labels, "labels"), (words, "words"), (resize, "resize")):
        if given is not None:
            raise DataError(f"{name!r} is read as it is; {option}=, --{option} are for files")
    if known.make is not None:
        return split_data(known, *known.make(), split, seed, "fixed")
    folder = find(name, data_dir) or _download(known, data_dir, progress)
    if known.columns:
        sentences, own = read_sentences([folder / file for file in known.files], known.columns)
        return split_data(known, sentences, own, split, seed, "files")
    if holds_images(folder / known.files[0]):
        images, own = read_images(folder / known.files[0])
        return split_data(known, images, own, split, seed, "files")
    parts = [read(folder / file, **known.options) for file in known.files]
    if len(parts) == 3:
        data = _joined(parts, [folder / file for file in known.files])
        ends = np.cumsum([len(part) for part in parts])
        rows = np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1])
        return split_data(known, data, Split(*rows), split, seed, "files")
    beside = folder / "split.json"
    if split is None and beside.is_file():
        split = beside
    return split_data(known, parts[0], None, split, seed)


def _read_path(
    name: str,
    split: AnyPath | None,
    labels: Any,
    seed: int,
    resize: tuple[int, int] | None,
    words: str | None,
) -> Raw:
    """Read a file or folder by the reader for its name and content."""
    title, tokens = Path(name).name, TOKEN_FEATURES
    if resize is not None and not Path(name).is_dir():
        raise DataError(f"{name!r} is no folder of images; resize= is for those")
    if words is not None:
        if not is_table(name):
            raise DataError("words= (--words) names a column of texts in a CSV, TSV or Parquet file", name)
        made = Entry(title, f"the texts in {name}", features=tokens)
        return split_data(made, read_labelled_texts(name, words, labels), None, split, seed)
    if files := find_parts(name):
        if labels is not None:
            raise DataError("sentences have tags in the last column; leave labels=, --labels out", name)
        sentences, own = read_sentences(files)
        return split_data(
            Entry(title, f"the sentences in {name}", features=tokens), sentences, own, split, seed, "files"
        )
    if is_labelled(name):
        made = Entry(title, f"the images in {name}")
        return split_data(made, read_labelled_images(name, labels, resize), None, split, seed)
    if holds_images(name):
        if labels is not None:
            raise DataError("images have masks for labels; leave labels=, --labels out", name)
        images, own = read_images(name, resize)
        return split_data(Entry(title, f"the images in {name}"), images, own, split, seed, "files")
    data = read(name, labels)
    return split_data(
        Entry(title, f"the file {name}", standardise=not data.is_sparse), data, None, split, seed
    )


def find_clusters(known: Entry, data_dir: AnyPath | None) -> dict[str, str]:
    """Read the Brown clusters that go with a set of sentences."""
    assert known.clusters is not None
    name, file = known.clusters
    places = [folder / file for folder in _folders(entry(name), data_dir)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        what = f"{', '.join(BROWN)} are made of Brown clusters, which come with {name!r}"
        advice = "put that set there, or choose other features"
        raise DataError(f"{what} and are in none of {', '.join(map(str, places))}; {advice}")
    return read_clusters(path)


def find_embeddings(known: Entry, data_dir: AnyPath | None) -> list[Path]:
    """Return the files with word vectors that suit a set, as far as they are there."""
    paths = []
    for file in known.embeddings:
        places = [root / "embeddings" / file for root in _roots(data_dir)]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            tried = ", ".join(map(str, places))
            what = f"word vectors for {known.name!r} are in none of {tried}"
            advice = "the words they would cover are learned from scratch; pass others as embeddings="
            warnings.warn(f"{what}; {advice} (--embeddings)", stacklevel=4)
        else:
            paths.append(path)
    return paths


def split_data(
    known: Entry,
    data: Examples,
    own: Split | None,
    file: AnyPath | None,
    seed: int,
    own_name: str = "",
) -> Raw:
    """Cut the data by the given file, else by its own split, else by stratification."""
    if file is not None:
        chosen, name = Split.read(file, len(data)), Path(file).name
    elif own is not None:
        chosen, name = own, own_name
    else:
        by = np.zeros((len(data), 0)) if data.target is None else data.target.stratify_by()
        kind = "stratified" if by.shape[1] else "random"
        chosen, name = stratified_split(by, seed=seed), f"{kind}(seed={seed})"
    return Raw(known, tuple(data.take(rows) for rows in (chosen.train, chosen.valid, chosen.test)), name)


def _joined(parts: list[MultiLabelData], paths: list[Path]) -> Examples:
    first = parts[0]
    for part, path in zip(parts, paths, strict=True):
        if (part.feature_names, part.label_names) != (first.feature_names, first.label_names):
            what = f"its attributes are not those of {paths[0].name}; use files of one release"
            raise DataError(what, path)
    return concatenated(parts)


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
