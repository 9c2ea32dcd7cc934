"""Constituency trees: tags and brackets that spell them, what is refused, and EVALB's count."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lossnet.brackets import (
    PLAIN,
    Kind,
    bracketed,
    brackets,
    count_brackets,
    drawn,
    linearise,
    read_linear,
    read_step,
    read_tree,
    spell,
)
from lossnet.spans import Span

LABELS = ("S", "NP", "VP", "PRT", "ADVP")


def random_tree(random, start, end, depth=0):
    """A tree over words: chains of labels, and two to four children."""
    chain = random.choice(LABELS, random.integers(0 if end - start == 1 else 1, 3))
    yield from (Span(start, end, str(label)) for label in chain)
    if end - start > 1:
        cuts = 1 + np.sort(random.permutation(end - start - 1)[: random.integers(1, 4)])
        for a, b in itertools.pairwise([0, *cuts.tolist(), end - start]):
            yield from random_tree(random, start + a, start + b, depth + 1)


def trees(count=200, longest=12):
    random = np.random.default_rng(0)
    for _ in range(count):
        length = int(random.integers(1, longest))
        yield tuple(random_tree(random, 0, length)), length


def test_tags_and_brackets_lose_nothing():
    for tree, length in trees():
        tags = spell(tree, length)
        assert len(tags) == length
        assert read_tree(tags) == tree
        assert read_linear(linearise(tree, length), length) == tree


def test_the_root_may_have_several_children_and_no_label():
    flat = Span(0, 1, "NP"), Span(1, 3, "VP")
    for tree, length in [((), 1), ((), 4), (flat, 3), (flat, 5), ((Span(0, 1, "X"),), 1)]:
        assert read_tree(spell(tree, length)) == tree
        assert read_linear(linearise(tree, length), length) == tree


def test_long_and_deep_trees_are_spelled():
    right = tuple(Span(start, 300, "S") for start in range(299))
    left = tuple(Span(0, end, "S") for end in range(300, 1, -1))
    for tree in (right, left):
        assert read_tree(spell(tree, 300)) == tree
        text = drawn(tree, ["word"] * 300)
        assert text.count("(") == text.count(")") == 300


def test_punctuation_is_marked_and_changes_no_tree():
    tree = Span(0, 2, "S"), Span(0, 1, "NP")
    tags = spell(tree, 3, punctuation=[2])
    assert [read_step(tag).punctuation for tag in tags] == [False, False, True]
    assert read_tree(tags) == tree


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        ([Span(0, 2, "S"), Span(1, 3, "VP")], r"\(0, 2\) and \(1, 3\) cross"),
        ([Span(0, 4, "S")], "not among 3 words"),
        ([Span(1, 1, "S")], "not among 3 words"),
        ([Span(0, 2, "S>VP")], "a label may have no"),
        ([Span(0, 2, "")], "a label may have no"),
    ],
)
def test_what_is_no_tree_is_not_spelled(tree, what):
    with pytest.raises(ValueError, match=what):
        spell(tree, 3)


@pytest.mark.parametrize(
    ("tags", "what"),
    [
        (["l L", "x"], "'x' spells no part of a tree"),
        (["r L", "r"], "'r L' of word 1 of 2 is a right child of nothing"),
        (["l R", "r"], "'l R' of word 1 of 2 has a branching that is a right child of nothing"),
        (["l L", "r R", "r"], "'r R' of word 2 of 3 has a branching"),
        (["l L", "r", "r"], "'r' of word 2 of 3 is for the last word"),
        (["l L", "r L"], "'r L' of word 2 of 2 is not for the last word"),
        (["l L", "l L", "r"], "1 branchings have no right child at the end of 3 words"),
    ],
)
def test_what_spells_no_tree_is_not_read(tags, what):
    with pytest.raises(ValueError, match=what):
        read_tree(tags)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_steps_that_stay_above_nothing_are_those_that_spell_trees(length):
    for tags in itertools.product(PLAIN, repeat=length):
        kinds = [read_step(tag).kind for tag in tags]
        waiting = list(itertools.accumulate(kind.change for kind in kinds))
        ends = kinds[-1] >= Kind.LAST and all(kind < Kind.LAST for kind in kinds[:-1])
        is_tree = ends and min(waiting[:-1], default=1) > 0 and waiting[-1] == 0
        try:
            read_tree(tags)
        except ValueError:
            assert not is_tree, tags
        else:
            assert is_tree, tags


@given(st.lists(st.sampled_from(["*", ")", "(S", "(NP"]), max_size=30), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_a_tree_comes_of_any_sequence_of_brackets(symbols, length):
    tree = read_linear(symbols, length)
    assert read_tree(spell(tree, length)) == tree


# ---------------------------------------------------------------- brackets, counted again from text


def evalb(gold, test, parts_of_speech):
    """EVALB's rules from bracketed text, counted with lists: a bracket of the other side is used up once."""

    def labelled(text):
        stack, found, place, word = [], [], 0, 0
        for part in text.replace("(", " ( ").replace(")", " ) ").split():
            if part == "(":
                stack.append(None)
            elif part == ")":
                label, start = stack.pop()
                if label != "TOP" and start != place:
                    found.append(("ADVP" if label == "PRT" else label, start, place))
            elif stack[-1] is None:
                stack[-1] = part, place
            else:
                place += parts_of_speech[word] not in (",", ":", "``", "''", ".")
                word += 1
        return found

    real, guessed = labelled(gold), labelled(test)
    left, right = list(real), 0
    for one in guessed:
        if one in left:
            left.remove(one)
            right += 1
    return {"right": right, "guessed": len(guessed), "real": len(real)}


def test_brackets_are_counted_as_by_evalb():
    random = np.random.default_rng(1)
    shared = 0
    for (tree, length), (other, _) in zip(trees(150), trees(400), strict=False):
        if length > 8:  # another tree over the same words
            other = tuple(random_tree(random, 0, length))
        other = tuple(span for span in other if span.end <= length)
        tokens = [f"w{number}" for number in range(length)]
        tags = random.choice(["NN", ",", ".", ":", "``", "''", "-LRB-"], length)
        left_out = [word for word, tag in enumerate(tags) if tag not in ("NN", "-LRB-")]
        counts = count_brackets(other, tree, left_out)
        assert dict(counts) == evalb(bracketed(tree, tokens), bracketed(other, tokens), tags)
        shared += counts["right"]
    assert shared > 100


def test_what_evalb_does_with_chains_particles_and_punctuation():
    tree = Span(0, 3, "NP"), Span(0, 3, "NP"), Span(1, 2, "PRT"), Span(2, 3, "X")
    assert brackets(tree, [2]) == {Span(0, 2, "NP"): 2, Span(1, 2, "ADVP"): 1}
    once = count_brackets([Span(0, 3, "NP"), Span(1, 2, "ADVP")], tree, [2])
    assert once == {"right": 2, "guessed": 2, "real": 3}


def test_trees_are_written_as_treebanks_do():
    tree = Span(0, 4, "S"), Span(0, 1, "NP"), Span(1, 4, "VP"), Span(2, 4, "NP")
    tokens = ["She", "saw", "(", ")"]
    assert bracketed(tree, tokens) == "(TOP (S (NP She) (VP saw (NP -LRB- -RRB-))))"
    for width in (1, 20, 30, 200):
        assert " ".join(drawn(tree, tokens, width).split()) == bracketed(tree, tokens)
    assert "\n" not in drawn(tree, tokens, 200)
    assert drawn(tree, tokens, 20).splitlines()[:3] == ["(TOP", "  (S", "    (NP She)"]
