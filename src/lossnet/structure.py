"""Whether labels say something of each other that the inputs do not.

Networks of several folds predict each training instance without having seen it.  Label sets that are drawn
from these predictions, as if labels were independent, stand beside the true set, and an energy learns to tell
it from them (ranking loss, SEAL Eq. 4 with noise from other networks).  Where labels really are independent
given the inputs, and the predictions calibrated, nothing can: the loss stays at ``log(K + 1)``.

Two energies are compared, so that faults of the predictions are not taken for structure: one corrects each
label by itself, and one sees pairs of labels and their number too.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.data import Dataset
from lossnet.decoding import calibrate
from lossnet.energies import LabelResidual
from lossnet.loading import Loaded
from lossnet.methods import Stack
from lossnet.remarks import TrainingWarning
from lossnet.run import Run, find_device, fit, settled
from lossnet.spaces import MultiLabel
from lossnet.training.progress import Progress

__all__ = ["Structure", "find_structure", "told_apart"]

#: sets that are drawn for an instance: to train an energy, and to measure it, this many times
_SAMPLES, _NEGATIVES, _DRAWS = 50, 20, 5
_BATCH, _MOST_EPOCHS, _PATIENCE = 128, 60, 10
_LR, _WEIGHT_DECAY = 3e-3, 1.0
#: a gain that corrections of labels one by one may leave where labels are independent
_LEAST = 0.03


@dataclass(frozen=True)
class Structure:
    """How well an energy tells validation instances' true sets from drawn ones.

    Args:
        negatives: sets drawn for each instance, ``K``.
        corrected: ranking losses ``(instances,)`` of an energy that corrects each label by itself.
        structured: those of one that sees pairs of labels and their number too.
    """

    negatives: int
    corrected: Tensor
    structured: Tensor

    @property
    def chance(self) -> float:
        """``log(K + 1)``, the loss where nothing can be told."""
        return math.log(self.negatives + 1)

    def rows(self) -> list[tuple[str, float, float]]:
        """Return names, mean losses or gains, and their standard errors over instances.

        >>> [name for name, *_ in Structure(20, torch.ones(4), torch.ones(4)).rows()]
        ['labels corrected one by one', 'and by each other', 'gained by structure']
        """
        named = {
            "labels corrected one by one": self.corrected,
            "and by each other": self.structured,
            "gained by structure": self.corrected - self.structured,
        }
        return [(name, float(one.mean()), float(one.std() / len(one) ** 0.5)) for name, one in named.items()]

    def verdict(self) -> str:
        """Return one line that says whether there is structure to learn.

        >>> Structure(20, torch.tensor([3.0, 2.9, 3.1]), torch.tensor([2.0, 2.0, 2.1])).verdict()
        'labels say of each other what inputs do not: 0.97 nats an instance (s.e. 0.03)'
        """
        *_, (_, gain, error) = self.rows()
        figures = f"{gain:.2f} nats an instance (s.e. {error:.2f})"
        if gain > max(2 * error, _LEAST):
            return f"labels say of each other what inputs do not: {figures}"
        return f"no sign that labels say of each other what inputs do not: {figures}"


def find_structure(run: Run, data: Loaded) -> Structure:
    """Return what an energy learns of the label sets of a data set beyond what inputs say.

    Takes the time of method ``stack``, whose networks predict, and seconds more.  Half of the validation
    instances choose the epoch at which the other half is measured.
    """
    if not isinstance(data.task.space(settled(run)[2]), MultiLabel):
        raise ValueError(f"structure is looked for in sets of labels, not in {data.task.output.kind}")
    run = dataclasses.replace(run, method="stack", loss=None, output=None, resume=False)
    device = find_device(run.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)  # about the stack, which is not wanted
        method = fit(run, data).model.method
    assert isinstance(method, Stack)
    parts = [_predictions(method, part, device) for part in (data.train, data.valid)]
    # Of sets that were not trained on: the noise is to be what the networks believe, made right.
    (train, truth), (valid, known) = parts
    calibration = calibrate(method.space, train.sigmoid(), truth)
    train, valid = (torch.logit(calibration(method.space, one.sigmoid()), 1e-6) for one in (train, valid))
    corrected, structured = (
        told_apart(train, truth, valid, known, rank, run.seed, run.progress) for rank in (0, 32)
    )
    return Structure(_NEGATIVES, corrected, structured)


def _predictions(method: Stack, data: Dataset, device: str) -> tuple[Tensor, Tensor]:
    """Return logits and truth, ``(instances, labels)``: each instance's by the network of its fold."""
    method.to(device).eval()
    logits, truths = [], []
    with torch.no_grad():
        for rows in torch.arange(len(data)).split(512):
            batch = data.batch(rows).to(device)
            logits.append(method.out_of_fold(batch).cpu())
            truths.append(batch.y.cpu().float())
    return torch.cat(logits), torch.cat(truths)


def told_apart(
    train: Tensor,
    truth: Tensor,
    valid: Tensor,
    known: Tensor,
    rank: int,
    seed: int = 0,
    progress: bool = False,
) -> Tensor:
    """Return the ranking loss ``(instances,)`` of validation instances under a `LabelResidual`.

    It is trained to tell the true sets ``truth`` from sets that are drawn by the logits ``train``.

    Args:
        train: logits of training instances, from networks that were not trained on them, ``(n, labels)``.
        truth: their sets.
        valid: logits of validation instances, ``(m, labels)``.
        known: their sets.
        rank: of the matrix of pairs; 0 for corrections of each label by itself.
        seed: of the draws.

    >>> logits = torch.zeros(300, 2)                # both labels have a chance of ½ …
    >>> first = (torch.rand(300, 1, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    >>> truth = torch.cat([first, first], 1)        # … and always come together
    >>> losses = told_apart(logits[:200], truth[:200], logits[200:], truth[200:], rank=2)
    >>> bool(losses.mean() < 2.7 < math.log(21))
    True
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        energy = LabelResidual(train.shape[1], rank)
    optimizer = torch.optim.AdamW(energy.parameters(), lr=_LR, weight_decay=_WEIGHT_DECAY)
    drawn = [_drawn(valid, _NEGATIVES, generator) for _ in range(_DRAWS)]
    halves = torch.arange(len(valid)) % 2
    losses, best = [_ranking(energy, valid, known, drawn)], [math.inf, math.inf]
    kept, since = [0, 0], 0
    with Progress(progress):
        for epoch in range(_MOST_EPOCHS):
            order = torch.randperm(len(train), generator=generator)
            for rows in order.split(_BATCH):
                candidates = _candidates(truth[rows], _drawn(train[rows], _SAMPLES, generator))
                loss = _losses(energy, train[rows], candidates).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(_ranking(energy, valid, known, drawn))
            since += 1
            for half in (0, 1):
                mean = float(losses[-1][halves == half].mean())
                if mean < best[half] - 1e-4:
                    best[half], kept[half], since = mean, epoch + 1, 0
            if since > _PATIENCE:
                break
    # The epoch of each half is chosen by the other one.
    return torch.where(halves == 0, losses[kept[1]], losses[kept[0]])


def _drawn(logits: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw label sets ``(instances, count, labels)``, labels independently."""
    chances = logits.sigmoid().unsqueeze(1).expand(-1, count, -1)
    return torch.bernoulli(chances, generator=generator)


def _candidates(truth: Tensor, drawn: Tensor) -> Tensor:
    return torch.cat([truth.unsqueeze(1), drawn], 1)


def _losses(energy: LabelResidual, logits: Tensor, candidates: Tensor) -> Tensor:
    """Return ``−log softmax(−R)`` of the first candidate, ``(instances,)``."""
    return -F.log_softmax(-energy(logits, candidates), 1)[:, 0]


@torch.no_grad()
def _ranking(energy: LabelResidual, logits: Tensor, truth: Tensor, drawn: list[Tensor]) -> Tensor:
    """Return the loss of each instance, ``(instances,)``, averaged over draws."""
    return torch.stack([_losses(energy, logits, _candidates(truth, one)) for one in drawn]).mean(0)
