"""Small models of each kind, untrained: what they answer does not matter here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lossnet.build import build
from lossnet.data import Lexicon, MultiLabelData, Preprocessor, Sentences
from lossnet.model import Model
from lossnet.settings import Settings
from lossnet.tasks import LabelTask, MaskTask, TagTask

SMALL = Settings(task_hidden=8, energy_hidden=8, global_hidden=4, image_net="unet", image_width=4)
FEATURES = ("length", "country=fr", "country=it", "größe")
LABELS = ("fun", "sad", "ärger")


def made(task, method="cross-entropy", loss="none", settings=SMALL):
    torch.manual_seed(0)
    built = build(method, loss, settings, task)
    return Model(built.eval(), (method, loss), settings, task, threshold=0.5)


@pytest.fixture(scope="session")
def make_model():
    return made


@pytest.fixture(scope="session")
def label_model():
    x = np.random.default_rng(0).normal(size=(40, 4)) * [30, 1, 1, 2]
    data = MultiLabelData.from_arrays(x, np.ones((40, 3)), FEATURES, LABELS)
    return made(LabelTask(FEATURES, LABELS, Preprocessor.fit(data, standardise=True)))


@pytest.fixture(scope="session")
def tag_model():
    return tagger(("case", "shape", "characters"))


@pytest.fixture(scope="session")
def column_model():
    return tagger(("case", "pos"))


def tagger(features):
    read = Sentences(
        (("Ann", "went", "to", "Rome", "Rome"), ("to", "Ann")),
        (("B", "O", "O", "B", "B"), ("O", "B")),
        {"pos": (("N", "V", "P", "N", "N"), ("P", "N"))},
    )
    return made(TagTask(Lexicon.fit(read, tags=("O", "B"), features=features)))


@pytest.fixture(scope="session")
def mask_model():
    return made(MaskTask(channels=3, size=(12, 10)))
