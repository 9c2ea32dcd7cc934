"""A conditional random field: the linear chain trained by its exact likelihood (Lafferty et al. 2001)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from lossnet.energies import Chain, Sum
from lossnet.methods.base import Method, Stage, Update
from lossnet.methods.spec import MethodSpec
from lossnet.spaces import Batch, Tags


class CRF(Method):
    """A chain energy trained on ``E(x, y) + log Σ_y' exp(−E(x, y'))``; prediction is Viterbi's algorithm.

    The exact baseline for learned losses of the same energy; energies that look further have none.

    >>> import torch
    >>> from lossnet.nets import BiLSTM, WordVectors
    >>> encoder = BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4)
    >>> method = CRF(Sum(encoder, Chain(encoder.width, tags=3)), Tags(3))
    >>> method.predict(torch.tensor([[[3], [2], [0]]])).sum(-1)
    tensor([[1., 1., 0.]])
    """

    predictors = ("energy",)

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
        encoded = self.energy.encode(batch.x)
        energies = self.energy.evaluate(encoded, batch.y.unsqueeze(1)).squeeze(1)
        yield Update("energy", batch.mean(energies + self._chain.log_partition(*encoded)))

    def predict(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._chain.viterbi(*self.energy.encode(x))

    def marginals(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the probability of each tag, ``(batch, length, tags)``, by which epochs are chosen."""
        return self._chain.marginals(*self.energy.encode(x))

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
