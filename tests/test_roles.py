"""Arguments and oddities against counters that read brackets, and spans that are drawn at random."""

import numpy as np
import pytest
import torch

from lossnet.roles import count_roles, find_arguments, is_core
from lossnet.scores import RoleMeter, main_metric, meter
from lossnet.spaces import Roles

KINDS = ("A0", "A1", "C-A1", "AM-TMP", "R-A0", "C-A0")
NAMES = ("O", *(f"{mark}-{kind}" for kind in KINDS for mark in "BI"))


def drawn(random, length):
    """Random tags of whole spans."""
    tags = []
    while len(tags) < length:
        count = int(random.integers(1, 4))
        if random.random() < 0.4:
            tags += ["O"] * count
        else:
            kind = KINDS[random.integers(len(KINDS))]
            tags += [f"B-{kind}"] + [f"I-{kind}"] * (count - 1)
    return tags[:length]


def column(tags):
    """Tags as the column that CoNLL-2005's scorer reads: (A0*, *, *)."""
    ends = [at + 1 == len(tags) or not tags[at + 1].startswith("I-") for at in range(len(tags))]
    return [
        (f"({tag[2:]}" if tag[0] == "B" else "") + "*" + (")" if tag != "O" and end else "")
        for tag, end in zip(tags, ends, strict=True)
    ]


def scorer(cells):
    """Arguments as srl-eval.pl finds them: read brackets; a C-X joins the last X, if there is one."""
    spans, opened = [], None
    for at, cell in enumerate(cells):
        left, _, right = cell.partition("*")
        if left:
            opened = [left[1:], at]
        if right:
            spans.append((opened[0], opened[1], at))
    whole = []
    for kind, first, last in spans:
        of = [one for one in whole if kind[:2] == "C-" and one[0] == kind[2:]]
        if of:
            of[-1][1].append((first, last))
        else:
            whole.append([kind, [(first, last)]])
    return {(kind, tuple(pieces)) for kind, pieces in whole}


def test_counts_are_those_of_a_scorer_that_reads_brackets():
    random = np.random.default_rng(0)
    pairs = []
    for number in range(300):
        tags = drawn(random, int(random.integers(1, 9)))
        pairs.append((tags, tags if number % 3 == 0 else drawn(random, len(tags))))
    counts = count_roles([a for a, _ in pairs], [b for _, b in pairs])
    found = [(scorer(column(a)), scorer(column(b))) for a, b in pairs]
    assert counts["right"] == sum(len(a & b) for a, b in found) > 100
    assert counts["guessed"] == sum(len(a) for a, _ in found)
    assert counts["real"] == sum(len(b) for _, b in found) > counts["right"]
    assert counts["whole"] == sum(a == b for a, b in found) > 50
    assert counts["predicates"] == 300
    opened = [[cell[1 : cell.index("*")] for cell in column(a) if cell[0] == "("] for a, _ in pairs]
    repeated = [sum(kinds.count(kind) > 1 for kind in ("A0", "A1")) > 0 for kinds in opened]
    lost = [
        any(kind[:2] == "C-" and kind[2:] not in kinds[:at] for at, kind in enumerate(kinds))
        for kinds in opened
    ]
    dangling = ["R-A0" in kinds and "A0" not in kinds for kinds in opened]
    assert [counts[what] for what in ("repeated", "continuations", "references")] == [
        sum(repeated), sum(lost), sum(dangling)
    ]  # fmt: skip
    assert min(sum(repeated), sum(lost), sum(dangling)) > 10


def test_a_continued_argument_is_right_only_as_a_whole():
    truth = ["B-A1", "O", "B-C-A1"]
    half = count_roles([["B-A1", "O", "O"]], [truth])
    assert (half["right"], half["guessed"], half["real"]) == (0, 1, 1)
    assert count_roles([truth], [truth])["right"] == 1
    assert [one.role for one in find_arguments(["B-C-A1", "B-A1"])] == ["C-A1", "A1"]


@pytest.mark.parametrize(
    ("role", "core"),
    [("A0", True), ("ARG5", True), ("ARG6", False), ("C-ARG1", False), ("ARG1-DSP", False), ("V", False)],
)
def test_core_roles(role, core):
    assert is_core(role) is core


def test_sentences_must_be_as_long_as_each_other():
    with pytest.raises(ValueError, match="1 predicted tags for a sentence of 2 tokens"):
        count_roles([["O"]], [["O", "O"]])


def test_the_meter_leaves_padding_out_and_adds_up():
    random = np.random.default_rng(1)
    space = Roles(len(NAMES), NAMES)
    assert main_metric(space) == "span_f1"
    assert isinstance(meter(space), RoleMeter)
    rows = [(drawn(random, n), drawn(random, n)) for n in (3, 7, 5, 1, 6, 2)]
    y = torch.zeros(2, len(rows), 7, len(NAMES))
    for row, pair in enumerate(rows):
        for which, tags in enumerate(pair):
            for at, tag in enumerate(tags):
                y[which, row, at, NAMES.index(tag)] = 1
    parts = meter(space)
    for some in (slice(0, 2), slice(2, 6)):
        parts.add(y[0, some], y[1, some])
    values, whole = parts.compute(), meter(space).measure(y[0], y[1])
    assert values == whole
    counts = count_roles(*zip(*rows, strict=True))
    assert values["ucr"] == counts["repeated"] / 6
    assert values["whole_predicates"] == counts["whole"] / 6
    assert values["span_f1"] == 2 * counts["right"] / (counts["guessed"] + counts["real"])
    names = [one.name for one in parts.metrics]
    assert names == list(dict.fromkeys(names))
    assert set(names) == set(values)


def test_moves_keep_spans_whole_and_change_one():
    torch.manual_seed(0)
    random, space = np.random.default_rng(2), Roles(len(NAMES), NAMES)
    tags = [drawn(random, 9) for _ in range(20)]
    y = torch.eye(len(NAMES))[torch.tensor([[NAMES.index(tag) for tag in row] for row in tags])]
    mask = (torch.arange(9) < torch.arange(1, 21).clamp(max=9).unsqueeze(1)).float()
    y = y * mask.unsqueeze(2)
    moved = space.moves(y, 50, mask)
    assert moved.shape == (20, 50, 9, len(NAMES))
    real = mask.bool().unsqueeze(1).expand(20, 50, 9).flatten(0, 1)
    assert space.constraints().hold(moved.argmax(-1).flatten(0, 1), real).all()
    assert (moved.sum(-1) == mask.unsqueeze(1)).all()
    before = [find_arguments([NAMES[tag] for tag in row]) for row in y.argmax(-1).tolist()]
    for row, candidates in zip(before, moved.argmax(-1).tolist(), strict=True):
        pieces = {piece for one in row for piece in one.pieces}
        changes = []
        for candidate in candidates:
            after = {p for one in find_arguments([NAMES[tag] for tag in candidate]) for p in one.pieces}
            changes.append(len(pieces ^ after))
        assert max(changes) <= 1
        assert any(changes)
