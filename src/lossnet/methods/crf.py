"""A conditional random field: the linear chain trained by its exact likelihood (Lafferty et al. 2001)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lossnet.energies import Chain, Sum
from lossnet.energies.chain import Potentials
from lossnet.methods.base import Method, Stage, Update
from lossnet.methods.spec import MethodSpec
from lossnet.spaces import Batch, Penalties, Tags


class CRF(Method):
    """A chain energy trained on ``E(x, y) + log Σ_y' exp(−E(x, y'))``; prediction is Viterbi's algorithm.

    The exact baseline for learned losses of the same energy; energies that look further have none.

    Where tags mark spans, sequences that their scheme forbids are left out of the sum and of predictions
    (`lossnet.spaces.Tags.constraints`).  A training sentence whose own tags are forbidden is compared with
    all sequences, so that its loss stays finite; the library's readers let no such sentence in.

    >>> from lossnet.nets import BiLSTM, WordVectors
    >>> encoder = BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4)
    >>> method = CRF(Sum(encoder, Chain(encoder.width, tags=3)), Tags(3))
    >>> method.predict(torch.tensor([[[3], [2], [0]]])).sum(-1)
    tensor([[1., 1., 0.]])
    """

    predictors = ("energy",)
    space: Tags

    def __init__(self, energy: Sum, space: Tags) -> None:
        super().__init__()
        if not isinstance(energy, Sum) or [type(term) for term in energy.terms] != [Chain]:
            raise ValueError("method crf needs an energy that is a Sum of one term, a Chain")
        self.space = space
        self.energy = energy

    def stages(self) -> tuple[Stage, ...]:
        # A path says nothing of how likely it is, so that its log loss would rank epochs by their errors.
        return (Stage("energy", ("energy",), self.updates, self.marginals),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        (potentials,) = self.energy.encode(batch.x)
        energies = self.energy.evaluate((potentials,), batch.y.unsqueeze(1)).squeeze(1)
        partition = self._chain.log_partition(potentials, self._penalties(potentials, batch.y))
        yield Update("energy", batch.mean(energies + partition))

    def predict(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        (potentials,) = self.energy.encode(x)
        return self._chain.viterbi(potentials, self._penalties(potentials))

    def marginals(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the probability of each tag, ``(batch, length, tags)``, by which epochs are chosen."""
        (potentials,) = self.energy.encode(x)
        return self._chain.marginals(potentials, self._penalties(potentials))

    def _penalties(self, potentials: Potentials, truth: Tensor | None = None) -> Penalties | None:
        """Return the scores that exclude what the scheme forbids, but for sentences whose truth breaks it."""
        local, mask = potentials
        constraints = self.space.constraints(local.device)
        if constraints is None:
            return None
        penalties = constraints.penalties(mask, local.dtype)
        if truth is None:
            return penalties
        whole = constraints.hold(truth.argmax(-1), mask)
        if whole.device.type == "cpu" and bool(whole.all()):  # elsewhere a step may be captured as a graph
            return penalties  # one matrix of neighbours for all sentences
        return Penalties(*(torch.where(whole[:, None, None], part, 0) for part in penalties))

    @property
    def _chain(self) -> Chain:
        chain = self.energy.terms[0]
        assert isinstance(chain, Chain)
        return chain


SPEC = MethodSpec(
    "crf",
    CRF,
    "a chain energy alone, trained by its exact likelihood (tags only)",
    losses={"likelihood": None},
    rates={"energy": "energy_lr"},
    search=("energy_dropout",),
    spaces=(Tags,),
    portfolio=("likelihood",),
)
