"""What `test_processes` trains in one process and in several.

As a script, ``torchrun --nproc-per-node 2 shared_work.py FOLDER`` leaves a checkpoint of every case in
``FOLDER/2``; without ``torchrun`` it is ``FOLDER/1``.
"""

import dataclasses
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from lossnet.build import build
from lossnet.data import MaskData, MultiLabelData, TaggedSentences, Weighted
from lossnet.inputs import Images
from lossnet.outputs import Masks
from lossnet.settings import Settings
from lossnet.spaces import Batch
from lossnet.task import Task
from lossnet.training import CheckpointError, Trainer
from lossnet.training.engines import joined

# Batches of 11 leave a last one of a single row: uneven shares, and one of nothing.
BATCH = 11
SMALL = Settings(
    task_hidden=8,
    task_layers=1,
    energy_hidden=8,
    energy_layers=1,
    global_hidden=4,
    task_dropout=0.3,
    energy_dropout=0.3,
    samples=3,
    energy_steps=1,
    inference_steps=4,
    inference_candidates=2,
    image_width=4,
    crop=8,
    solver_terms=3,
)


class Case(NamedTuple):
    """A method, its loss, settings beside the small ones, epochs of each stage, and the kind of data.

    Some are trained in float64.  The energy of an image has a constant that contrastive losses do not see:
    its gradient is rounding alone, which AdamW makes steps of.  Finite differences, which stand for second
    derivatives of recurrent networks, magnify rounding.
    """

    method: str
    loss: str
    settings: dict[str, object]
    epochs: int
    kind: str = "labels"


LONG = 9  # of 6 batches, so that every network takes 50 steps or more
CASES = {
    "cross-entropy": Case("cross-entropy", "none", {}, LONG, "more labels"),
    "seal": Case("seal", "nce", {}, LONG, "more labels"),
    "identity": Case("implicit", "nce", {}, LONG, "more labels"),
    "neumann": Case("implicit", "nce", {"solver": "neumann"}, LONG, "more labels"),
    "conjugate-gradient": Case("implicit", "margin", {"solver": "conjugate-gradient"}, 1),
    "diagonal": Case("implicit", "cd", {"solver": "diagonal"}, 1),
    "rank-one": Case("implicit", "regression", {"solver": "rank-one"}, 1),
    "soft-f1": Case("cross-entropy", "soft-f1", {}, 1, "weighted labels"),
    "spen": Case("spen", "margin", {"inference_start": "noise"}, 1),
    "dvn": Case("dvn", "regression", {"inference_optimizer": "adam"}, 1),
    "nce-energy": Case("nce-energy", "ranking", {"inference_start": "net"}, 1),
    "infnet": Case("infnet", "perceptron", {}, 1, "weighted labels"),
    "infnet-plus": Case("infnet-plus", "margin", {"cost_net": "shared"}, 2),
    "seal-static": Case("seal-static", "regression", {}, 1),
    "regression-s": Case("seal", "regression-s", {}, 2),
    "crf": Case("crf", "likelihood", {}, 1, "tags"),
    "tags": Case("seal", "nce", {"tag_models": "forward"}, 1, "tags"),
    "stacked tags": Case("infnet-plus", "margin", {}, 1, "tags"),
    "implicit tags": Case("implicit", "nce", {}, 1, "precise tags"),
    "blocks": Case(
        "seal",
        "nce",
        {"noise": "blocks", "flips": True, "warp": 0.1, "colour": 0.1, "patches": 0.5},
        1,
        "precise masks",
    ),
    "smooth": Case("seal", "regression-s", {"noise": "smooth"}, 1, "precise masks"),
    "dice": Case("cross-entropy", "dice", {"image_net": "unet", "image_enlarge": 2}, 1, "precise masks"),
}
RESUMED = ("regression-s", "infnet-plus")  # of one stage: others would go on with the second


class Double:
    """Data in double precision."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def batch(self, indices):
        x, y, mask, *_ = self.data.batch(indices)
        return Batch(x.double() if x.is_floating_point() else x, y.double(), mask)


def problem(kind):
    """A task, and its training and validation data."""
    random = np.random.default_rng(0)
    if kind.startswith("precise"):
        task, data, _ = problem(kind.removeprefix("precise "))
        return task, Double(data), Double(data)
    if kind == "masks":
        images, masks = random.random((23, 10, 10)), random.random((23, 10, 10)) < 0.5
        data = MaskData.from_arrays(images, masks)
        return Task(Images(1, (8, 8)), Masks()), data, data
    if kind == "tags":
        tokens = tuple(tuple(random.choice(list("abcd"), random.integers(1, 7))) for _ in range(23))
        read = TaggedSentences(tokens, tuple(tuple("XY"[word in "ab"] for word in words) for words in tokens))
        task = Task.fit([read])
        (data,) = task.prepare([read])
        return task, data, data
    x = random.normal(size=(56 if kind == "more labels" else 23, 6)).astype("float32")
    y = x @ random.normal(size=(6, 4)) > 0
    y[:, 0] |= ~y.any(1)
    data = MultiLabelData.from_arrays(x, y)
    if kind != "weighted labels":
        return Task.of_sizes(6, 4), data, data
    weights = torch.from_numpy(random.random(23).astype("float32"))
    return Task.of_sizes(6, 4), Weighted(data, weights / weights.mean()), data


def fit(name, checkpoint, processes=None, epochs=None, resume=False):
    """Trains a case, or goes on with it, and leaves its checkpoint."""
    case = CASES[name]
    settings = dataclasses.replace(SMALL, **case.settings)
    task, train, valid = problem(case.kind)
    torch.manual_seed(0 if processes is None else processes.rank)  # all get the first one's weights
    method = build(case.method, case.loss, settings, task)
    trainer = Trainer(
        method.double() if case.kind.startswith("precise") else method,
        lr=5e-3,
        batch_size=BATCH,
        max_epochs=epochs or case.epochs,
        checkpoint=checkpoint,
        checkpoint_every=0,
        views=task.views(settings),
        progress=False,
        processes=processes,
    )
    trainer.fit(train, valid, resume)


def main(folder):
    """All cases in as many processes as there are; returns what was refused."""
    torch.set_num_threads(1)
    with joined() as processes:
        for name in CASES:
            fit(name, folder / str(processes.count) / name, processes)
        for name in RESUMED:
            fit(name, folder / "fewer" / name, processes, epochs=1)
            if (folder / "more" / name).exists():
                fit(name, folder / "more" / name, processes, resume=True)
        try:
            fit("seal", folder / "absent", processes, resume=True)
        except CheckpointError as error:  # found by one process, raised in all
            return str(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
