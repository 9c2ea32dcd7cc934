import dataclasses

import numpy as np
import pytest

from lossnet.build import METHODS, build
from lossnet.data import Lexicon, Sentences, TagSet
from lossnet.inputs import Images, Words
from lossnet.outputs import Masks, Tags
from lossnet.settings import Settings
from lossnet.task import Task
from lossnet.tune import Choice, Range, default_space, parse

WORDS = Sentences((("I", "bet", "I"),))
TASKS = {
    "labels": Task.of_sizes(inputs=4, labels=3),
    "masks": Task(Images(channels=1, size=(8, 8)), Masks()),
    "tags": Task(Words(Lexicon.fit(WORDS), np.zeros((3, 2), np.float32)), Tags(TagSet(("O", "V")))),
}
TINY = {"task_hidden": 4, "energy_hidden": 4, "global_hidden": 2, "image_width": 8}
CASES = [
    (method, loss, kind)
    for method, spec in METHODS.items()
    for loss in spec.losses
    for kind, task in TASKS.items()
    if spec.suits(loss, task.space(Settings()))
]
#: what the trainer reads for whatever it trains
TRAINER = {"task_lr", "energy_lr", "weight_decay"}


def recorded(settings):
    """The same settings, and a set of the names that are read from them."""
    read = set()

    class Recorder(Settings):
        def __getattribute__(self, name):
            read.add(name)
            return super().__getattribute__(name)

    return Recorder(**dataclasses.asdict(settings)), read


@pytest.mark.parametrize(("method", "loss", "kind"), CASES)
def test_what_is_searched_by_default_is_used(method, loss, kind):
    settings, read = recorded(Settings(**TINY))
    built = build(method, loss, settings, TASKS[kind])
    read = set(read)
    space = default_space(method, loss, Settings(**TINY), TASKS[kind])
    assert set(space) - TRAINER <= read
    networks = {name for stage in built.stages() for name in stage.networks}
    stages = {stage.name for stage in built.stages()}
    assert ("energy_lr" in space) == ("energy" in networks)
    others = networks - {"energy"} or (stages & {"local energy"})
    assert ("task_lr" in space) == bool(others)


def test_the_recorder_sees_what_is_not_read():
    settings, read = recorded(Settings(**TINY))
    read.clear()
    build("cross-entropy", "none", settings, TASKS["masks"])
    assert "image_net" in read
    assert not {"task_dropout", "samples", "inference_lr"} & read


@pytest.mark.parametrize(("method", "loss", "kind"), CASES)
def test_all_that_can_be_searched_by_default_makes_settings(method, loss, kind):
    start = Settings(**TINY, implicit_every=3, energy_steps=4, weight_decay=0.0, energy_lr=0.5)
    space = default_space(method, loss, start, TASKS[kind])
    for end in ("low", "high"):
        dataclasses.replace(start, **{name: getattr(where, end) for name, where in space.items()})
    for name, where in space.items():
        assert name == "weight_decay" or getattr(start, name) in where or name == "score_weight"


def test_what_a_score_term_weighs_depends_on_labels_and_on_where_the_search_starts():
    one = default_space("cross-entropy", "soft-f1", Settings(), Task.of_sizes(4, 10))["score_weight"]
    assert (one.low, one.high) == (0.3, 30.0)
    assert "score_weight" not in default_space("seal", "nce", Settings(), TASKS["labels"])
    given = default_space("seal", "nce", Settings(score_weight=7.0), TASKS["labels"])["score_weight"]
    assert given == Range(0.7, 70.0, log=True)


def test_kinds_of_output_have_ranges_of_their_own():
    words = Settings(tag_models="words")
    for method, there in (("seal", True), ("crf", True), ("cross-entropy", False)):
        loss = METHODS[method].default_loss
        assert ("word_model_weight" in default_space(method, loss, words, TASKS["tags"])) == there
        assert "word_model_weight" not in default_space(method, loss, Settings(), TASKS["tags"])
    weights = [default_space("seal", "nce", Settings(), TASKS[kind])["energy_weight"] for kind in TASKS]
    assert weights == [Range(low, high, log=True) for low, high in ((1e-3, 10), (0.1, 1e3), (1e-3, 10))]
    for net, there in (("unet", True), ("fcn", False)):
        space = default_space("seal", "nce", Settings(image_net=net), TASKS["masks"])
        assert ("task_dropout" in space) == there


def test_energy_steps_leave_room_for_the_implicit_term():
    for every, steps, wanted in ((3, 4, (3, 12)), (12, 12, (12, 13)), (15, 15, (15, 16))):
        start = Settings(implicit_every=every, energy_steps=steps)
        space = default_space("implicit", "nce", start, TASKS["labels"])
        assert (space["energy_steps"].low, space["energy_steps"].high) == wanted


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("task-lr=0.1:1", Range(0.1, 1.0)),
        ("samples=5:40:log", Range(5, 40, log=True, whole=True)),
        ("conditioned=true,false", Choice((True, False))),
        ("solver=identity,neumann", Choice(("identity", "neumann"))),
        ("clip=5", Choice((5.0,))),
    ],
)
def test_spaces_are_read_by_the_setting_they_are_for(text, where):
    assert parse(text) == (text.split("=")[0].replace("-", "_"), where)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("samples", "write name=low:high"),
        ("samples=", "write name=low:high"),
        ("sample=3:4", "unknown setting 'sample'"),
        ("samples=0:4", "samples must be above 0"),
        ("samples=4:4", "from a lower to a higher"),
        ("samples=1:4:lin", "low:high:log"),
        ("samples=1:2:3:4", "low:high:log"),
        ("samples=1.5:4", "samples cannot be '1.5'"),
        ("score_weight=0:4:log", "starts above 0"),
        ("solver=identity:neumann", "list its values"),
        ("conditioned=maybe", "conditioned cannot be 'maybe'"),
        ("samples=3,3", "twice"),
        ("features=case,shape", "give it as a flag"),
        ("task_lr=nan:1", "above 0"),
    ],
)
def test_other_spaces_are_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse(text)
