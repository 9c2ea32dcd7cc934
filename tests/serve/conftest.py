"""Small models of each kind, untrained: what they answer does not matter here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lossnet.build import build
from lossnet.data import FeatureTable, Lexicon, Preprocessor, Sentences, TagSet
from lossnet.inputs import Features, Images, Words
from lossnet.model import Model
from lossnet.outputs import Labels, Masks, Tags
from lossnet.settings import Settings
from lossnet.task import Task

SMALL = Settings(task_hidden=8, energy_hidden=8, global_hidden=4, image_net="unet", image_width=4)
FEATURES = ("length", "country=fr", "country=it", "größe")
LABELS = ("fun", "sad", "ärger")


def made(task, method="cross-entropy", loss="none", settings=SMALL):
    torch.manual_seed(0)
    built = build(method, loss, settings, task)
    return Model(built.eval(), (method, loss), settings, task)


@pytest.fixture(scope="session")
def make_model():
    return made


@pytest.fixture(scope="session")
def label_model():
    x = np.random.default_rng(0).normal(size=(40, 4)) * [30, 1, 1, 2]
    preprocessor = Preprocessor.fit(FeatureTable(x, FEATURES), standardise=True)
    return made(Task(Features(FEATURES, preprocessor), Labels(LABELS)))


@pytest.fixture(scope="session")
def tag_model():
    return tagger(("case", "shape", "characters"))


@pytest.fixture(scope="session")
def column_model():
    return tagger(("case", "pos"))


def tagger(features):
    read = Sentences(
        (("Ann", "went", "to", "Rome", "Rome"), ("to", "Ann")),
        {"pos": (("N", "V", "P", "N", "N"), ("P", "N"))},
    )
    return made(Task(Words(Lexicon.fit(read, features)), Tags(TagSet(("O", "B")))))


@pytest.fixture(scope="session")
def text_model():
    """Labels of sentences."""
    read = Sentences((("a", "good", "film"), ("a", "bad", "film")))
    return made(Task(Words(Lexicon.fit(read, ("case",))), Labels(LABELS)))


@pytest.fixture(scope="session")
def picture_model():
    """Labels of images."""
    return made(Task(Images(3, (12, 10)), Labels(LABELS)))


@pytest.fixture(scope="session")
def mask_model():
    return made(Task(Images(3, (12, 10)), Masks()))
