"""What kinds of input share: how instances of requests are put together."""

import pytest

from lossnet.data import DataError, Lexicon, Sentences
from lossnet.inputs import Features, Images, Input, Question, Words


class Numbers(Input):
    """Whole numbers, which cost what they are and are batched with those of their parity."""

    summary, source = "numbers", Sentences
    question = Question({"type": "integer"}, most=100, together=10, unit="ones")
    fit = matches = width = network = state = from_state = None

    def cost(self, item):
        return item

    def shape(self, item):
        return (item % 2,)


def test_groups_are_of_one_shape_and_cost_little_when_padded():
    items = [4, 3, 2, 12, 1, 5, 6, 4]
    groups = [[items[place] for place in group] for group in Numbers().groups(items)]
    # 2, 4 and 4 padded to 4 would cost 12; 12 costs too much by itself, and still is predicted
    assert groups == [[2, 4], [4], [6], [12], [1, 3], [5]]
    assert sorted(place for group in Numbers().groups(items) for place in group) == list(range(8))
    assert list(Numbers().groups([])) == []


def test_each_kind_is_put_together_in_its_own_way():
    assert [len(group) for group in Features.of_size(1).groups([[0.0]] * 600)] == [512, 88]
    words = Words(Lexicon.fit(Sentences((("a", "b"),))))
    sentences = [words.parse(["a"] * length) for length in (3, 1, 2)]
    assert list(words.groups(sentences)) == [[1, 2, 0]]
    assert words.collate(sentences).tokens == (("a",) * 3, ("a",), ("a",) * 2)
    images = Images(1, (2, 2))
    pictures = [images.parse([[0] * width] * 2) for width in (2, 3, 2)]
    assert list(images.groups(pictures)) == [[0, 2], [1]]


def test_a_kind_that_reads_no_python_objects_or_files_says_so():
    with pytest.raises(
        DataError, match="numbers are not read from Python objects; give an instance of Sentences"
    ):
        Numbers().read([1])
    with pytest.raises(ValueError, match="files of numbers cannot be read in parts"):
        Numbers().stream("some.txt")
    with pytest.raises(ValueError, match="numbers are not read from JSON"):
        Numbers().parse(3)
