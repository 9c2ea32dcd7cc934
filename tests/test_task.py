"""Which inputs and outputs go together, and what becomes of them."""

import json
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch

from lossnet.build import METHODS, build
from lossnet.data import (
    DataError,
    Examples,
    FeatureTable,
    LabelTable,
    Lexicon,
    MaskData,
    MultiLabelData,
    Sentences,
    TagColumn,
    TaggedSentences,
    TagSet,
)
from lossnet.data.examples import Source
from lossnet.energies import Energy
from lossnet.inputs import Features, Fitting, Images, Input, Words
from lossnet.outputs import Labels, Masks, Output, Tags
from lossnet.settings import Settings
from lossnet.task import Task

SMALL = Settings(
    task_hidden=4, energy_hidden=4, global_hidden=3, task_layers=1, energy_layers=1, image_width=2, samples=2
)
INPUTS = {
    "features": Features.of_size(3),
    "words": Words(Lexicon.fit(Sentences((("a", "b", "a", "b"),)))),
    "images": Images(2, (8, 8)),
}
OUTPUTS = {"labels": Labels(("x", "y")), "tags": Tags(TagSet(("x", "y"))), "masks": Masks()}
SENSIBLE = {
    ("features", "labels"),
    ("words", "labels"),
    ("images", "labels"),
    ("words", "tags"),
    ("images", "masks"),
}


@pytest.mark.parametrize(("source", "output"), sorted(SENSIBLE))
def test_what_goes_together_has_networks_and_energies(source, output):
    torch.manual_seed(0)
    task = Task(INPUTS[source], OUTPUTS[output])
    assert task.title == f"{task.output.summary} from {task.input.summary}"
    assert task.output.kind == output
    raw = next(task.input.examples(SMALL, task.output.level, 2, 0))
    x, mask = task.exported(torch.from_numpy(raw))
    space = task.space(SMALL)
    y = space.relax(task.task_net(SMALL)(x), mask)
    for bounded in (False, True):
        energies = task.energy(SMALL, bounded)(x, torch.stack([y, y / 2], 1))
        assert energies.shape == (2, 2)
        assert energies.isfinite().all()
    assert task.score(y.unsqueeze(1), y.round()).shape == (2, 1)


@pytest.mark.parametrize(("source", "output"), sorted({*product(INPUTS, OUTPUTS)} - SENSIBLE))
def test_what_does_not_go_together_is_refused_with_the_reason(source, output):
    with pytest.raises(DataError) as caught:
        Task(INPUTS[source], OUTPUTS[output])
    message = str(caught.value)
    assert message.startswith(f"{output} need features of each {OUTPUTS[output].level}, and ")
    assert INPUTS[source].summary in message


def test_tags_of_feature_vectors_are_refused_as_data_too():
    data = Examples(FeatureTable([[1.0], [2.0]]), TagColumn((("a",), ("b",))))
    with pytest.raises(DataError, match="tags need features of each position, and feature vectors have them"):
        Task.fit([data])


def test_data_need_outputs():
    with pytest.raises(DataError, match="training data have no outputs; give labels, tags or masks"):
        Task.fit([Examples(FeatureTable([[1.0]]))])


RANDOM = np.random.default_rng(0)
DATA = {
    "rows": MultiLabelData.from_arrays(RANDOM.normal(size=(6, 3)), RANDOM.integers(0, 2, (6, 2))),
    "tagged": TaggedSentences((("Ann", "saw", "Ann"), ("saw",)), (("I-PER", "O", "I-PER"), ("O",))),
    "texts": Examples(Sentences((("a", "b"), ("b", "a", "b"))), LabelTable([[1, 0], [0, 1]])),
    "masks": MaskData(RANDOM.random((2, 3, 8, 8)), RANDOM.integers(0, 2, (2, 8, 8))),
    "pictures": Examples(MaskData(np.ones((2, 3, 8, 8)), np.ones((2, 8, 8))).source, LabelTable([[1], [0]])),
}


@pytest.mark.parametrize("name", DATA)
def test_a_fitted_task_prepares_matches_and_survives_its_description(name):
    data = DATA[name]
    task = Task.fit([data, data.take([0]), data.take([])], Fitting(standardise=True, features=("case",)))
    prepared, some, none = task.prepare([data, data.take([0]), data.take([])])
    assert type(prepared) is type(data)
    assert (len(prepared), len(some), len(none)) == (len(data), 1, 0)
    assert task.matches(prepared)
    assert task.matches(Examples(prepared.source))
    content, arrays = task.state()
    again = Task.from_state(json.loads(json.dumps(content)), arrays)
    assert again.is_like(task)
    assert task.is_like(again)
    mine, its = prepared.batch(np.arange(2)), again.prepare([data])[0].batch(np.arange(2))
    for one, other in zip(mine, its, strict=True):
        assert one is other is None or torch.equal(one, other)
    others = [other for other in DATA if other != name]
    assert not any(task.matches(Task.fit([DATA[other]]).prepare([DATA[other]])[0]) for other in others)
    assert not any(task.is_like(Task.fit([DATA[other]])) for other in others)


def test_outputs_are_fitted_on_all_parts_and_inputs_on_training_data():
    train = TaggedSentences((("Ann", "Ann"),), (("N", "N"),))
    test = TaggedSentences((("saw", "saw"),), (("V", "V"),))
    task = Task.fit([train, train, test])
    assert task.output.names == ("N", "V")
    assert task.input.lexicon.words.strings == ("Ann",)


def test_raw_inputs_are_read_as_users_and_clients_have_them():
    task = Task.fit([DATA["rows"]], Fitting(standardise=True))
    row = [0.5, 1.0, -2.0]
    read, came = task.read([row]), task.prepare_inputs(task.input.collate([task.input.parse(row)]))
    assert read.target is None
    assert torch.equal(read.batch(np.array([0])).x, came.batch(np.array([0])).x)


@pytest.mark.parametrize(("source", "output"), sorted(SENSIBLE))
def test_methods_say_what_they_are_not_for(source, output):
    task = Task(INPUTS[source], OUTPUTS[output])
    for name, spec in METHODS.items():
        for loss in spec.losses:
            if not spec.suits(loss, task.space(SMALL)):
                with pytest.raises(ValueError, match=f"method {name} with loss {loss} is not for {output}"):
                    build(name, loss, SMALL, task)


# ---------------------------------------------------------------- kinds of one's own


@dataclass(frozen=True)
class Points(Source):
    """Points of a plane, as angles."""

    angles: np.ndarray

    def __len__(self):
        return len(self.angles)

    def take(self, rows):
        return Points(self.angles[rows])

    def batch(self, indices):
        angles = torch.from_numpy(self.angles[np.asarray(indices)]).float()
        return {"x": angles.cos(), "y": angles.sin()}


class PointNet(torch.nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.width = 2
        self.head = torch.nn.Identity() if outputs is None else torch.nn.Linear(2, outputs)

    def forward(self, x):
        return self.head(torch.stack([x["x"], x["y"]], 1))


@pytest.fixture
def circle():
    """A kind of input whose batches are trees, for as long as a test lasts."""

    @dataclass(frozen=True)
    class Circle(Input):
        kind = "circle"
        summary = "points on a circle"
        source = Points
        levels = ("instance",)
        width = 2

        @classmethod
        def fit(cls, parts, fitting):
            return cls()

        def read(self, x):
            return Points(np.asarray(x))

        def matches(self, source):
            return isinstance(source, Points)

        def network(self, settings, level, role="task", outputs=None):
            return PointNet(outputs)

        def state(self):
            return {}, {}

        @classmethod
        def from_state(cls, content, arrays):
            return cls()

    yield Circle
    del Input.kinds["circle"]


def test_a_kind_of_ones_own_is_found_by_its_data_and_by_its_name(circle):
    angles = np.linspace(0, 6, 40)
    data = Examples(Points(angles), LabelTable(np.stack([np.cos(angles) > 0, np.sin(angles) > 0], 1)))
    task = Task.fit([data])
    assert task.title == "sets of labels from points on a circle"
    again = Task.from_state(*task.state())
    assert type(again.input) is circle
    method = build("seal", "nce", SMALL, again)
    batch = again.prepare([data])[0].batch(np.arange(4))
    assert method.predict(batch.x, None).shape == (4, 2)
    assert isinstance(method.energy, Energy)
    assert method.energy(batch.x, torch.rand(4, 3, 2)).shape == (4, 3)
    with pytest.raises(DataError, match="tags need features of each position"):
        Task(circle(), OUTPUTS["tags"])


def test_data_of_no_kind_say_what_to_define():
    with pytest.raises(
        DataError, match=r"no kind of input is for Points; define a subclass of lossnet\.inputs"
    ):
        Task.fit([Examples(Points(np.zeros(1)), LabelTable([[1]]))])
    assert {"features", "words", "images"} <= set(Input.kinds)
    assert {"labels", "tags", "masks"} <= set(Output.kinds)
