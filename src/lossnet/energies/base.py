"""Base classes of energies and terms, the sum of terms over one encoder, and energies of any module."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn


class Energy(nn.Module):
    """``E(x, y)``: candidates ``(batch, K, *event)`` give ``(batch, K)``, any real number, low is good."""

    @abstractmethod
    def encode(self, x: Tensor) -> Any:
        """Return everything about ``x`` that scoring candidates needs, computed once."""

    @abstractmethod
    def evaluate(self, encoded: Any, y: Tensor) -> Tensor:
        """Return energies ``(batch, K)`` of candidates ``(batch, K, *event)`` for encoded inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``E(x, y)`` of candidates ``(batch, K, *event)``, as ``(batch, K)``."""
        return self.evaluate(self.encode(x), y)

    def at(self, x: Tensor, facts: Any = None) -> Callable[[Tensor], Tensor]:
        """Return the function ``y ↦ E(x, y)`` with ``x`` encoded already.

        ``facts`` are what is known of the instances; energies but rules, and sums of them, pass it over.
        """
        return partial(self.evaluate, self.encode(x))

    @contextmanager
    def frozen(self, but: Iterable[nn.Parameter] = ()) -> Iterator[None]:
        """Compute no gradient for the energy's parameters inside, ``but`` for some."""
        kept = set(but)
        parameters = [one for one in self.parameters() if one.requires_grad and one not in kept]
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)

    def unary_logits(self, x: Tensor) -> Tensor:
        """Return logits of the classifier hidden in the local term, to pretrain the encoder with."""
        raise ValueError(
            f"{type(self).__name__} has no local term to pretrain or to start inference from; "
            "give another energy (of images: image_energy=unet)"
        )


class Term(nn.Module):
    """One summand of an energy, over features that `Sum` computes for all of its terms.

    Features are what the encoder makes of the inputs: a tensor, or `lossnet.nets.Tokens` of sentences.
    """

    @abstractmethod
    def prepare(self, features: Any) -> Any:
        """Return what this term needs of the features, computed once for all candidates."""

    @abstractmethod
    def evaluate(self, prepared: Any, y: Tensor) -> Tensor:
        """Return energies ``(batch, K)`` of candidates ``(batch, K, *event)``."""

    def unary_logits(self, features: Any) -> Tensor | None:
        """Return logits ``(batch, *event)`` of the classifier that this term is, if it is one."""
        return None


class LogPartition(Energy):
    """``τ(x)``, the same for all outputs, as a term of a `Sum`: it makes an energy normalised.

    `lossnet.losses.Partition` trains it to be ``log Σ_y exp(−E(x, y))`` of the other terms.

    Args:
        net: from inputs to one number, ``(batch, 1)``.

    >>> import torch
    >>> LogPartition(nn.Linear(4, 1))(torch.zeros(2, 4), torch.zeros(2, 7, 3)).shape
    torch.Size([2, 7])
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def encode(self, x: Any) -> Tensor:
        value: Tensor = self.net(x)
        return value

    def evaluate(self, encoded: Tensor, y: Tensor) -> Tensor:
        return encoded.expand(-1, y.shape[1])


class Sum(Energy):
    """The sum of terms that share one encoder ``T(x)`` (SEAL Eq. 2), and of whole energies.

    The latter may be rules: ``Sum(encoder, Local(8, 3), excludes(0, 1, weight=2.0))``.  Those alone need no
    encoder: ``Sum(None, …)``.

    >>> import torch
    >>> from lossnet import energies, nets
    >>> encoder = nets.MLP(4, hidden=8, layers=1)
    >>> energy = Sum(encoder, energies.Local(8, labels=3), energies.LabelInteraction(3, hidden=5))
    >>> energy(torch.zeros(2, 4), torch.zeros(2, 7, 3)).shape
    torch.Size([2, 7])
    """

    def __init__(self, encoder: nn.Module | None, *terms: Term | Energy) -> None:
        super().__init__()
        if encoder is None and any(isinstance(term, Term) for term in terms):
            raise ValueError("terms read features: give an encoder, or only energies that read inputs")
        self.encoder = encoder
        self.terms = nn.ModuleList(terms)

    def encode(self, x: Tensor, facts: Any = None) -> tuple[Any, ...]:
        features = None if self.encoder is None else self.encoder(x)
        return tuple(
            term.at(x, facts) if isinstance(term, Energy) else term.prepare(features)
            for term in self._terms()
        )

    def at(self, x: Tensor, facts: Any = None) -> Callable[[Tensor], Tensor]:
        return partial(self.evaluate, self.encode(x, facts))

    def evaluate(self, encoded: tuple[Any, ...], y: Tensor) -> Tensor:
        first, *others = [
            prepared(y) if isinstance(term, Energy) else term.evaluate(prepared, y)
            for term, prepared in zip(self._terms(), encoded, strict=True)
        ]
        return sum(others, first)

    def unary_logits(self, x: Tensor) -> Tensor:
        features = None if self.encoder is None else self.encoder(x)
        for term in self._terms():
            logits = term.unary_logits(features) if isinstance(term, Term) else None
            if logits is not None:
                return logits
        return super().unary_logits(x)

    def _terms(self) -> list[Term | Energy]:
        return list(self.terms)  # type: ignore[arg-type]


class Scorer(Energy):
    """``E(x, y)`` computed by any module, pretrained or not: a reward model, a validator.

    The module maps inputs and candidates ``(batch, K, *event)``, relaxed or discrete, to ``(batch, K)``; low
    is good.  To teach a task net it must be differentiable in the candidates.

    >>> import torch
    >>> class Count(nn.Module):
    ...     def forward(self, x, y):
    ...         return (y.sum(-1) - 2) ** 2  # wants two labels
    >>> Scorer(Count())(torch.zeros(1, 4), torch.tensor([[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]))
    tensor([[0., 1.]])
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def encode(self, x: Any) -> Any:
        return x

    def evaluate(self, encoded: Any, y: Tensor) -> Tensor:
        energies: Tensor = self.module(encoded, y)
        if energies.shape != y.shape[:2]:
            what = f"the energy gives the shape {tuple(energies.shape)} for {y.shape[1]} candidates"
            raise ValueError(f"{what} of {len(y)} instances; it must be {tuple(y.shape[:2])}")
        return energies
