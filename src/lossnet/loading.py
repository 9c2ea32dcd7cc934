"""Data sets by name or file, read, split and prepared for training."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lossnet.data import Coverage, DataError, Examples, digest
from lossnet.data.errors import AnyPath
from lossnet.data.readers import read_frame
from lossnet.data.registry import TOKEN_FEATURES, Entry, read_raw, split_data
from lossnet.data.sentence_files import read_labelled_texts
from lossnet.data.tables import Origin
from lossnet.inputs import Fitting, Input
from lossnet.outputs import Output
from lossnet.task import Task, kind_for

__all__ = ["Description", "Loaded", "describe", "gather", "load"]

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Loaded:
    """A data set ready to train on: its three parts, prepared by what was fitted on the first.

    The ``task`` holds what was fitted.  ``coverage`` says how much of the text each table of word vectors
    covers.  The ``digest`` is a hash of what was read; it is empty for data from elsewhere.  ``origin`` has
    the columns of a table, used and dropped.
    """

    name: str
    description: str
    train: Examples
    valid: Examples
    test: Examples
    task: Task
    split_name: str
    coverage: tuple[Coverage, ...] = ()
    digest: str = ""
    origin: Origin | None = None

    @classmethod
    def from_parts(
        cls,
        train: Examples,
        valid: Examples,
        test: Examples | None = None,
        fitting: Fitting | None = None,
        name: str = "arrays",
        split_name: str = "given",
    ) -> Loaded:
        """Return data that are in memory, prepared by what is fitted on the training part.

        >>> from lossnet.data import MultiLabelData
        >>> data = MultiLabelData.from_arrays([[0.5], [2.0]], [[1, 0], [0, 1]])
        >>> Loaded.from_parts(data, data).task.title
        'sets of labels from feature vectors'
        """
        parts = [train, valid, train.take([]) if test is None else test]
        task = Task.fit(parts, fitting)
        train, valid, test = task.prepare(parts)
        return cls(name, name, train, valid, test, task, split_name)


def load(
    name_or_path: AnyPath,
    data_dir: AnyPath | None = None,
    split: AnyPath | None = None,
    labels: Any = None,
    seed: int = 0,
    progress: bool = True,
    resize: tuple[int, int] | None = None,
    words: str | None = None,
    features: str | None = None,
    embeddings: Sequence[AnyPath] | None = None,
    task: Task | None = None,
    data: Any = None,
    valid: AnyPath | None = None,
    test: AnyPath | None = None,
    encoding: str | None = None,
) -> Loaded:
    """Return a data set by name, or a file in any format of `lossnet.data.readers`, ready to train on.

    A named set is looked for in ``data_dir``, then where the environment variable ``LOSSNET_DATA``
    points, then in the user's cache, where it is downloaded to if it can be.  Rows are split by
    ``split``, a file for `Split.read`; else by the ``split.json`` beside a named set or by its own
    files; else by `stratified_split` with ``seed``.

    =====================================  =====================================================
    a table                                ``labels`` says which columns are labels
    a table with ``words``                 texts in that column, and labels
    a column file                          sentences and tags; ``features`` of tokens is a name of
                                           the set's lists, or a list of `Lexicon`'s features
    a folder or archive of images          with masks, or with ``labels.csv``; ``resize`` gives a
                                           folder's images one height and width
    a folder with ``train``, ``valid``     any of these, in files called ``train.csv`` and so on; in
    or ``test``                            folders where they are images
    =====================================  =====================================================

    ``valid`` and ``test`` are files, or folders of images, that validate and test beside one that then only
    trains.  Their columns are those of training by name; categories, words and labels are those that
    training knows.  If only one of the two is there, a fifth of the training rows is the other.  Text files
    are UTF-8 unless ``encoding`` says otherwise.

    ``embeddings`` are files with word vectors, which are joined; by default those that suit the set.  Inputs
    and outputs are fitted on the training rows unless a model's ``task`` is given.

    ``data`` that are in memory take the place of a file's: `Examples`; a pair of inputs and outputs, see
    `gather`; or a data frame, for which ``labels`` and ``words`` are as for a table.  `Loaded` data are
    returned unchanged.

    >>> loaded = load("digits-pairs")
    >>> len(loaded.train), len(loaded.valid), len(loaded.test), loaded.split_name
    (1800, 600, 600, 'fixed')
    >>> load("digits-scenes").train.size
    (32, 32)
    >>> import pandas
    >>> films = pandas.DataFrame({"length": range(60, 90), "short": [1] * 10 + [0] * 20})
    >>> loaded = load("films", data=films, labels=["short"])
    >>> loaded.task.title, len(loaded.train), loaded.split_name
    ('sets of labels from feature vectors', 18, 'stratified(seed=0)')
    """
    if isinstance(data, Loaded):
        return data
    if data is None:
        where = (name_or_path, data_dir, split, labels, seed, progress, resize, words)
        raw = read_raw(*where, valid=valid, test=test, encoding=encoding)
    else:
        if valid is not None or test is not None or encoding is not None:
            raise DataError("valid=, test= and encoding= are for files; these data are in memory")
        examples = _collected(data, labels, words)
        standardise = not getattr(examples.source, "is_sparse", False)
        made = Entry(str(name_or_path), "data in memory", standardise=standardise, features=TOKEN_FEATURES)
        raw = split_data(made, examples, None, split, seed)
    fitting, known, sources = Fitting(), raw.entry, [part.source for part in raw.parts]
    if task is None:
        kind = kind_for(sources[0], Input)
        fitting = kind.fitting(known, sources, data_dir, features, embeddings)
        task = Task.fit(raw.parts, fitting)
    training, validation, testing = task.prepare(raw.parts)
    beside: list[Any] = [*fitting.tables, *([fitting.clusters] if fitting.clusters else [])]
    content = digest(*raw.parts, *beside)  # as read: computed values may be rounded otherwise elsewhere
    name, about, split_name = known.name, known.description, raw.split_name
    return Loaded(
        name,
        about,
        training,
        validation,
        testing,
        task,
        split_name,
        fitting.coverage,
        content,
        raw.origin,
    )


def _collected(data: Any, labels: Any, words: str | None) -> Examples:
    if hasattr(data, "columns"):
        return read_labelled_texts(data, words, labels) if words else read_frame(data, labels)
    if labels is not None or words is not None:
        raise DataError("labels= and words= name columns of a data frame or file; these data have none")
    if isinstance(data, Examples):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return gather(*data)
    what = f"data are a {type(data).__name__}; give a pair (X, Y), Examples, a data frame or Loaded"
    raise DataError(what)


def gather(x: Any, y: Any) -> Examples:
    """Return inputs and outputs as `Examples`, with kinds that are guessed from the values.

    Inputs are rows of numbers, sentences (texts or lists of tokens), or arrays of images; outputs are rows of
    0 and 1, lists of tags, or arrays of masks.

    >>> gather([[0.5], [2.0]], [[1, 0], [0, 1]]).target.names
    ('label_0', 'label_1')
    >>> gather([["Ann", "left"]], [["N", "V"]]).target.tags
    (('N', 'V'),)
    """
    source = _kind_of(Input.kinds, x, "inputs", "rows of numbers, sentences, or arrays of images").collect(x)
    wanted = "rows of 0 and 1, lists of tags, or arrays of masks"
    return Examples(source, _kind_of(Output.kinds, y, "outputs", wanted).collect(y, source))


def _kind_of(kinds: Mapping[str, Any], given: Any, what: str, wanted: str) -> Any:
    kind = next((kind for kind in kinds.values() if kind.accepts(given)), None)
    if kind is None:
        raise DataError(f"the {what}, {reprlib.repr(given)}, are of no known kind; give {wanted}")
    return kind


@dataclass(frozen=True)
class Description:
    """A data set in numbers; ``facts`` are the counts of its kinds of input and output.

    ``origin`` has the columns of a table, used and dropped.
    """

    name: str
    description: str
    split_name: str
    instances: Mapping[str, int]
    facts: Mapping[str, Any] = field(default_factory=dict)
    home: str = ""
    terms: str = ""
    origin: Origin | None = None


def describe(name_or_path: AnyPath, data_dir: AnyPath | None = None, **options: Any) -> Description:
    """Count a data set over its three parts; it is read by the arguments of `load`.

    >>> describe("digits-pairs").facts["labels_per_instance"]
    2.0
    >>> describe("digits-scenes").facts["size"]
    '32×32'
    """
    raw = read_raw(name_or_path, data_dir, **options)
    known, task = raw.entry, Task.fit(raw.parts)
    facts = task.input.describe([part.source for part in raw.parts])
    facts |= task.output.describe([part.target for part in raw.parts])
    if known.features:
        lists = (f"{name}: {', '.join(('words', *tokens))}" for name, tokens in known.features.items())
        facts["features"] = "; ".join(lists)
    instances = {part: len(data) for part, data in zip(PARTS, raw.parts, strict=True)}
    about = known.name, known.description, raw.split_name, instances, facts, known.home, known.terms
    return Description(*about, raw.origin)
