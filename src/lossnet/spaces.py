"""Spaces of outputs: how to relax, sample, weigh, project and decode them.

A *space* turns a network's logits into outputs.  Outputs are float tensors, relaxed or discrete, and
candidate outputs always carry a candidate axis::

    logits, truth, relaxed    (batch, *event)
    candidates                (batch, K, *event)

=============  ===================  ====================================================================
space          event                an output is
=============  ===================  ====================================================================
`MultiLabel`   ``(labels,)``        a set of labels: independent Bernoulli variables
`Tags`         ``(length, tags)``   one tag per token, one-hot; padded tokens are all zeros
`Roles`        ``(length, tags)``   the roles of a sentence's tokens for one predicate, as spans
`Trees`        ``(length, tags)``   a constituency tree, as tags that spell it
`Mask`         ``(height, width)``  a binary image: Bernoulli pixels, drawn independently or coherently
=============  ===================  ====================================================================

Padding is part of the space: ``mask`` is 1 where a unit (token, pixel) is real and 0 where it is padding,
and the outputs of padded units are zeros, so that nothing computed from them changes with padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet import ops
from lossnet.brackets import Kind, read_step
from lossnet.trees import Tree, first_leaf, tree_map

__all__ = [
    "Batch",
    "Blocks",
    "Constraints",
    "Field",
    "Mask",
    "MultiLabel",
    "Penalties",
    "Prediction",
    "Roles",
    "Sampler",
    "Smooth",
    "Space",
    "Tags",
    "Trees",
    "Weights",
    "best_path",
    "chain_steps",
    "mean",
]


#: ``count`` to as many outputs for each instance, ``(batch, count, *event)``
Sampler = Callable[[int], Tensor]
#: weights of instances in losses, ``(batch,)``: of all losses, or of each term of the task loss by its name
Weights = Tensor | Mapping[str, Tensor]
#: trees that are decoded together
_TOGETHER = 64
#: terms of the task loss that may have weights of their own
TERMS = ("energy", "ce", "score")


class Batch(NamedTuple):
    """A mini-batch of inputs, outputs, padding and weights.

    Args:
        x: inputs: a tensor or a tree of tensors (tuples, lists, mappings), instances along their first axes.
        y: truth ``(batch, *event)``; None where there are no labels.
        mask: 1 where a unit is real and 0 where it is padding.
        weight: of each instance in losses, ``(batch,)``, where they differ; a mapping with keys ``"energy"``,
            ``"ce"`` and ``"score"`` has those of each term of `lossnet.losses.TaskLoss`, 1 where it has none.
        rows: the instances' numbers in their data set, ``(batch,)``, for methods that cut it into folds.
        facts: what is known of instances beside their inputs, for rules: a tensor, or several by name.
        unlabelled: other instances, without ``y``, for methods that learn from those too.
        known: 1 where a label is known and 0 where it is not, and ``y`` 0; None where all are known.

    >>> batch = Batch({"ids": torch.zeros(2, 3), "lengths": torch.ones(2)}, None)
    >>> batch.size, batch.to("cpu").x["lengths"]
    (2, tensor([1., 1.]))
    """

    x: Tree
    y: Any = None
    mask: Tensor | None = None
    weight: Weights | None = None
    rows: Tensor | None = None
    facts: Any = None
    unlabelled: Batch | None = None
    known: Tensor | None = None

    @property
    def size(self) -> int:
        """The number of instances."""
        return first_leaf(self.x).shape[0]

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on another device."""
        moved: Batch = tree_map(lambda part: part.to(device), self)
        return moved

    def mean(self, losses: Tensor, term: str = "ce") -> Tensor:
        """Return the mean of instances' losses ``(batch,)``, each times its weight; see `mean`."""
        return mean(losses, self.weight, term)

    def weighted(self) -> Batch:
        """Return the same batch with weights of one where there were none."""
        leaf = first_leaf(self.x if self.y is None else self.y)
        ones = torch.ones(self.size, dtype=_float_type(leaf), device=leaf.device)
        weight = self.weight
        if isinstance(weight, Mapping):
            return self._replace(weight={term: weight.get(term, ones) for term in TERMS})
        return self._replace(weight=ones if weight is None else weight)


def mean(losses: Tensor, weight: Weights | None = None, term: str = "ce") -> Tensor:
    """Return the mean of ``weight · losses``, both ``(batch,)``.

    Weights that average 1 over a data set make batches' means average to the weighted mean over the set.
    Weights ``(groups, size)`` give each of the batch's groups a mean of its own, ``(groups,)``.  Where terms
    of the task loss have weights of their own, those of ``term`` count; losses outside of the task loss
    compare with the truth, as cross-entropy does, and have its weights.

    >>> mean(torch.tensor([1.0, 4.0]), torch.tensor([0.5, 1.5]))
    tensor(3.2500)
    >>> mean(torch.tensor([1.0, 4.0]), {"energy": torch.tensor([0.0, 2.0])}, "energy")
    tensor(4.)
    >>> mean(torch.tensor([1.0, 4.0]), torch.ones(2, 1))
    tensor([1., 4.])
    """
    if isinstance(weight, Mapping):
        unknown = ", ".join(sorted(set(weight) - set(TERMS)))
        if unknown:
            raise ValueError(f"weights of {unknown}: the task loss has terms {', '.join(TERMS)}")
        weight = weight.get(term)
    return losses.mean() if weight is None else (losses.view_as(weight) * weight).mean(-1)


class LogTerms(NamedTuple):
    """``log P(y) = Σ weights · y + constant``: weights ``(batch, *event)``, a constant ``(batch, 1)``.

    >>> LogTerms(torch.tensor([[1.0, 2.0]])).of(torch.tensor([[[1.0, 0.0], [1.0, 1.0]]]))
    tensor([[1., 3.]])
    """

    weights: Tensor
    constant: Tensor | None = None

    def of(self, y: Tensor) -> Tensor:
        """Return ``log P`` of candidates ``(…, batch, K, *event)``, as ``(…, batch, K)``."""
        chosen = ops.weighted_sum(y, self.weights)
        return chosen if self.constant is None else chosen + self.constant


class Space(ABC):
    """Base class of output spaces; see the module's table."""

    #: number of trailing dimensions that make up one output
    event_dims: int
    #: how many of those describe one unit; 1 where a unit is a vector, as a one-hot tag is
    unit_dims = 0
    #: whether units are yes or no, each by itself
    binary = False

    @abstractmethod
    def relax(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the expected output for logits with or without candidate axis."""

    def sample(self, logits: Tensor, count: int, mask: Tensor | None = None) -> Tensor:
        """Return ``count`` independent outputs for each instance, ``(batch, count, *event)``, no gradient."""
        return self.sampler(logits, mask)(count)

    @abstractmethod
    def sampler(self, logits: Tensor, mask: Tensor | None = None) -> Sampler:
        """Return a function that draws any number of outputs; `sample` calls it."""

    def __init_subclass__(cls) -> None:
        own = vars(cls)
        if "sample" in own:
            raise TypeError(f"{cls.__name__} overrides `sample`, which is never called; override `sampler`.")
        if ("log_terms" in own or "log_prob" in own) and "cross_entropy" not in own:
            cls.cross_entropy = Space.cross_entropy  # type: ignore[method-assign]  # by these

    @abstractmethod
    def log_terms(self, logits: Tensor, mask: Tensor | None = None) -> LogTerms:
        """Return what the log-probability of any output is made of."""

    def log_prob(self, logits: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return log-probabilities ``(batch, K)`` of candidates ``(batch, K, *event)``; linear in ``y``."""
        return self.log_terms(logits, mask).of(y)

    def cross_entropy(self, logits: Tensor, truth: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return ``−log P(y)`` of the truth ``(batch, *event)`` alone, ``(batch,)``."""
        return -self.log_prob(logits, truth.unsqueeze(1), mask).squeeze(1)

    @abstractmethod
    def project(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the Euclidean projection of any tensor onto the relaxed outputs."""

    @abstractmethod
    def decode(self, relaxed: Tensor) -> Tensor:
        """Return the discrete output nearest to a relaxed one (threshold 0.5, or the largest tag)."""

    @abstractmethod
    def zeros(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        """Return an all-zero output for each input (of a tree, its first tensor), ``(batch, *event)``."""

    def moves(
        self, y: Tensor, count: int, mask: Tensor | None = None, breaks: Tensor | None = None
    ) -> Tensor:
        """Return random neighbours of discrete outputs ``(batch, *event)``, ``(batch, count, *event)``."""
        what = f"{type(self).__name__} does not say how to change an output a little"
        raise NotImplementedError(f"{what}; define `moves` to search for outputs")

    def gaussian(self, like: Tensor) -> Tensor:
        """Return standard normal noise of that shape, with or without candidate axis; units independent."""
        return torch.randn_like(like)

    def _masked(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return values ``(batch, *event)`` or ``(batch, K, *event)`` with padded units set to zero."""
        if mask is None:
            return values
        mask = mask.bool()
        if mask.dim() < self.event_dims + 1:  # one entry per token, an event has tags as well
            mask = mask.unsqueeze(-1)
        mask = mask.unsqueeze(1) if values.dim() > self.event_dims + 1 else mask
        return torch.where(mask, values, 0)  # not a product: padding may hold infinities


class _Binary(Space):
    """Independent Bernoulli units; `MultiLabel` and `Mask` differ only in their event."""

    binary = True

    def relax(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._masked(torch.sigmoid(logits), mask)

    def sampler(self, logits: Tensor, mask: Tensor | None = None) -> Sampler:
        return ops.Bernoulli.from_logits(logits, mask)

    def log_terms(self, logits: Tensor, mask: Tensor | None = None) -> LogTerms:
        # log P(y) = Σ_i y_i·l_i − softplus(l_i)
        logits = self._masked(logits, mask)
        return LogTerms(logits, -self._masked(F.softplus(logits), mask).flatten(1).sum(1, keepdim=True))

    def cross_entropy(self, logits: Tensor, truth: Tensor, mask: Tensor | None = None) -> Tensor:
        return ops.cross_entropy(self._masked(logits, mask), truth, mask)

    def project(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._masked(y.clamp(0, 1), mask)

    def decode(self, relaxed: Tensor) -> Tensor:
        return (relaxed >= 0.5).to(relaxed.dtype)

    def moves(
        self, y: Tensor, count: int, mask: Tensor | None = None, breaks: Tensor | None = None
    ) -> Tensor:
        """Flip a unit or, in every second neighbour, swap two; ``breaks`` mean nothing here."""
        flat = y.flatten(1).unsqueeze(1).repeat(1, count, 1)
        places = torch.randint(flat.shape[2], (*flat.shape[:2], 2), device=y.device)
        values = flat.gather(2, places)
        first, second = places.split(1, 2)
        flat[:, ::2].scatter_(2, first[:, ::2], 1 - values[:, ::2, :1])
        flat[:, 1::2].scatter_(2, first[:, 1::2], values[:, 1::2, 1:])
        flat[:, 1::2].scatter_(2, second[:, 1::2], values[:, 1::2, :1])
        return self._masked(flat.reshape(len(y), count, *y.shape[1:]), mask)


@dataclass(frozen=True)
class MultiLabel(_Binary):
    """Sets of labels.

    >>> MultiLabel(3).relax(torch.tensor([[0.0, 100.0, -100.0]]))
    tensor([[0.5000, 1.0000, 0.0000]])
    """

    labels: int
    event_dims = 1

    def zeros(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        x = first_leaf(x)
        return torch.zeros(len(x), self.labels, device=x.device, dtype=_float_type(x))


class Field(ABC):
    """Base class of correlated noise over images: unit variance at every pixel, neighbours alike."""

    @abstractmethod
    def __call__(self, like: Tensor) -> Tensor:
        """Return an independent field for each image of a tensor ``(*images, height, width)``."""


@dataclass(frozen=True)
class Blocks(Field):
    """Constant on squares of ``size`` pixels, on a grid that lies differently in each image.

    >>> field = Blocks(size=4)(torch.zeros(1, 3, 16, 16))
    >>> sum(len(image.unique()) <= 25 for image in field[0])  # 4 × 4 squares, or 5 with cut ones
    3
    """

    size: int = 4

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"blocks have a size of at least one pixel, not {self.size}")

    def __call__(self, like: Tensor) -> Tensor:
        height, width = like.shape[-2:]
        images = like.shape[:-2].numel()
        squares = [(length + self.size - 2) // self.size + 1 for length in (height, width)]
        values = torch.randn(images, *squares, device=like.device, dtype=like.dtype)
        offsets = torch.randint(self.size, (images, 2), device=like.device)
        rows = (torch.arange(height, device=like.device) + offsets[:, :1]) // self.size
        columns = (torch.arange(width, device=like.device) + offsets[:, 1:]) // self.size
        image = torch.arange(images, device=like.device)[:, None, None]
        return values[image, rows[:, :, None], columns[:, None, :]].reshape(like.shape)


@dataclass(frozen=True)
class Smooth(Field):
    """White noise blurred by a Gaussian of ``scale`` pixels and brought back to unit variance.

    Pixels at a distance ``d`` correlate as ``exp(−d² / 4 scale²)``, a little more along the borders.

    >>> field = Smooth(scale=2.0)(torch.zeros(1, 3, 16, 16))
    >>> field.shape, bool(field.diff().std() < 0.5)
    (torch.Size([1, 3, 16, 16]), True)
    """

    scale: float = 2.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"a blur has a positive scale, not {self.scale}")

    def __call__(self, like: Tensor) -> Tensor:
        noise = torch.randn(like.shape, device=like.device, dtype=like.dtype)
        down, across = (self._blur(length, like) for length in like.shape[-2:])
        return down @ noise @ across.T

    def _blur(self, length: int, like: Tensor) -> Tensor:
        """Return weights ``(length, length)``; rows of unit norm keep the variance at borders."""
        place = torch.arange(length, device=like.device, dtype=like.dtype)
        weights = torch.exp(-((place[:, None] - place) ** 2) / (2 * self.scale**2))
        return F.normalize(weights, dim=1)


@dataclass(frozen=True)
class Mask(_Binary):
    """Binary images, ``(height, width)``; the size is read from the logits.

    Independent pixels make samples that no image looks like (SEAL §4.4).  With ``noise``, `sample` draws
    coherent ones through a Gaussian copula, ``y_i = [Φ(g_i) < p_i]`` with the field ``g`` that the noise
    gives, and `Prediction.perturb` adds the same kind of field to the logits.  Each pixel alone is still
    drawn with exactly its probability ``p_i``; independent ``g`` would be the plain sampling.

    `log_prob` stays that of independent pixels, ``P``, whatever ``Q`` the samples come from: the two agree
    on single pixels only.  NCE corrects for ``P``, so that its optimum becomes ``−E = log p(y|x) −
    log Q(y|x)/P(y|x)``: the energy learns what holds pixels together beyond what the noise does already.

    >>> Mask().decode(torch.tensor([[[0.2, 0.7]]]))
    tensor([[[0., 1.]]])
    >>> Mask(noise=Smooth(scale=2.0)).sample(torch.zeros(2, 24, 24), 5).shape
    torch.Size([2, 5, 24, 24])
    """

    noise: Field | None = None
    event_dims = 2

    def sampler(self, logits: Tensor, mask: Tensor | None = None) -> Sampler:
        noise = self.noise
        if noise is None:
            return super().sampler(logits, mask)
        logits = logits.detach().unsqueeze(1)
        # Φ(g) < σ(l), for each pixel as a bound on g, from the tail where σ is exact.  None is below NaN.
        bound = torch.special.ndtri(torch.sigmoid(-logits.abs())).copysign(logits)

        def draw(count: int) -> Tensor:
            field = noise(logits.expand(-1, count, -1, -1))
            return self._masked((field < bound).to(logits.dtype), mask)

        return draw

    def zeros(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        x = first_leaf(x)
        return torch.zeros(len(x), *x.shape[-2:], device=x.device, dtype=_float_type(x))

    def gaussian(self, like: Tensor) -> Tensor:
        return super().gaussian(like) if self.noise is None else self.noise(like)


@dataclass(frozen=True)
class Tags(Space):
    """One of ``tags`` tags for each token, as one-hot vectors; ``mask`` is ``(batch, length)``.

    Where tags mark spans, as ``B-PER`` does, ``names`` are their names, and models are chosen by their spans.
    Decoding then finds the likeliest tags that the names' scheme allows (`constraints`):

    >>> spans = Tags(5, ("O", "B-PER", "I-PER", "E-PER", "S-PER"))
    >>> spans.decode(torch.tensor([[[0.1, 0.5, 0, 0, 0.4], [0.6, 0, 0, 0.4, 0]]])).argmax(-1)
    tensor([[4, 0]])

    >>> Tags(2).relax(torch.zeros(1, 2, 2), torch.tensor([[1.0, 0.0]]))
    tensor([[[0.5000, 0.5000],
             [0.0000, 0.0000]]])
    """

    tags: int
    names: tuple[str, ...] = ()
    event_dims = 2
    unit_dims = 1

    def zeros(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        x = first_leaf(x)
        return torch.zeros(*x.shape[:2], self.tags, device=x.device, dtype=_float_type(x))

    def relax(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._masked(logits.softmax(-1), mask)

    def sampler(self, logits: Tensor, mask: Tensor | None = None) -> Sampler:
        batch, length, tags = logits.shape
        # NaN cannot be drawn from; log_prob of these samples still shows it.
        probabilities = logits.detach().softmax(-1).nan_to_num(1 / tags).reshape(batch * length, tags)

        def draw(count: int) -> Tensor:
            drawn = torch.multinomial(probabilities, count, replacement=True)
            drawn = drawn.reshape(batch, length, count).transpose(1, 2)
            return self._masked(F.one_hot(drawn, tags).to(probabilities.dtype), mask)

        return draw

    def log_terms(self, logits: Tensor, mask: Tensor | None = None) -> LogTerms:
        # A forbidden tag has a logit of −∞; clamped, it costs nothing where it is not chosen.
        lowest = torch.finfo(logits.dtype).min
        return LogTerms(self._masked(logits.log_softmax(-1).clamp(min=lowest), mask))

    def project(self, y: Tensor, mask: Tensor | None = None) -> Tensor:
        # Projection onto the simplex (Duchi et al. 2008): subtract the threshold that leaves a sum of 1.
        y = y - y.amax(-1, keepdim=True)  # changes nothing but keeps large values exact
        ordered = y.sort(dim=-1, descending=True).values
        excess = ordered.cumsum(-1) - 1
        rank = torch.arange(1, y.shape[-1] + 1, device=y.device, dtype=y.dtype)
        support = (ordered * rank > excess).sum(-1, keepdim=True)
        threshold = excess.gather(-1, support - 1) / support
        projected = (y - threshold).clamp(min=0)
        return self._masked(projected, mask)

    def decode(self, relaxed: Tensor) -> Tensor:
        best, real = relaxed.argmax(-1), relaxed.sum(-1) > 0
        constraints = self.constraints(relaxed.device)
        if constraints is not None:
            # The best tags are allowed in most sentences; only the others are searched.
            (wrong,) = (~constraints.hold(best, real)).nonzero(as_tuple=True)
            if len(wrong):
                penalties = constraints.penalties(real[wrong], relaxed.dtype)
                chances = relaxed[wrong].clamp(min=torch.finfo(relaxed.dtype).tiny).log()
                paths = best_path(chances + penalties.tags, penalties.pairs, real[wrong])
                best = best.index_copy(0, wrong, paths)
        # padding stays zero
        return F.one_hot(best, self.tags).to(relaxed.dtype) * real.unsqueeze(-1)

    def moves(
        self, y: Tensor, count: int, mask: Tensor | None = None, breaks: Tensor | None = None
    ) -> Tensor:
        """Give one to four neighbouring chunks one tag; chunks begin at ``breaks`` ``(batch, length)``.

        Without ``breaks`` each token is a chunk.

        >>> y = F.one_hot(torch.zeros(1, 6, dtype=torch.long), 3).float()
        >>> torch.manual_seed(2) and Tags(3).moves(y, 2).argmax(-1)
        tensor([[[0, 0, 0, 2, 2, 0],
                 [0, 0, 0, 0, 0, 0]]])
        """
        begins = torch.ones_like(y[..., 0], dtype=torch.bool) if breaks is None else breaks.to(y.device)
        real = y.sum(-1) > 0 if mask is None else mask > 0
        chunk = (begins & real).cumsum(1)  # from 1 on
        shape, device = (len(y), count), y.device
        first = 1 + (torch.rand(shape, device=device) * chunk.amax(1, keepdim=True)).long()
        last = first + torch.randint(4, shape, device=device)
        tag = F.one_hot(torch.randint(self.tags, shape, device=device), self.tags).to(y.dtype)
        chunk = chunk.unsqueeze(1)
        chosen = (chunk >= first.unsqueeze(2)) & (chunk <= last.unsqueeze(2)) & real.unsqueeze(1)
        return torch.where(chosen.unsqueeze(3), tag.unsqueeze(2), y.unsqueeze(1))

    def constraints(self, device: torch.device | str = "cpu") -> Constraints | None:
        """Return what the names' scheme allows, on a device; None if it allows everything.

        Names with ``E`` or ``S`` are read as BIOES; those with ``B`` and ``I`` alone as IOB2, or as IOB1,
        which allows everything, where a kind has no ``B``.
        """
        return _constraints(self.names, torch.device(device))


@dataclass(frozen=True)
class Roles(Tags):
    """The roles of a sentence's tokens for one predicate: `Tags` whose names mark spans by ``B-`` and ``I-``.

    >>> Roles(3, ("O", "B-A0", "I-A0")).decode(torch.tensor([[[0.4, 0, 0.6], [0.4, 0, 0.6]]])).argmax(-1)
    tensor([[0, 0]])
    """

    def moves(
        self, y: Tensor, count: int, mask: Tensor | None = None, breaks: Tensor | None = None
    ) -> Tensor:
        """Take the role from a span, or give another one to it or to a token without any.

        Every second move takes one away.  Spans stay whole, so that what the scheme allows stays allowed;
        ``breaks`` mean nothing here.

        >>> y = F.one_hot(torch.tensor([[1, 2, 0, 1]]), 3).float()
        >>> moved = Roles(3, ("O", "B-A0", "I-A0")).moves(y, 9)
        >>> allowed = Roles(3, ("O", "B-A0", "I-A0")).constraints()
        >>> bool(allowed.hold(moved.argmax(-1)[0], torch.ones(9, 4) > 0).all())
        True
        """
        begins, goes_on, inside = self.marks(y.device)
        tags, shape, device = y.argmax(-1), (len(y), count), y.device
        real = y.sum(-1) > 0 if mask is None else mask > 0
        unit = (~inside[tags]).cumsum(1)  # a span, or a token without a role
        place = (torch.rand(shape, device=device) * real.sum(1, keepdim=True)).long()
        chosen = (unit.unsqueeze(1) == unit.gather(1, place).unsqueeze(2)) & real.unsqueeze(1)
        role = torch.randint(1, max(len(begins), 2), shape, device=device) % len(begins)
        role[:, ::2] = 0
        first = ~inside[tags].unsqueeze(1)
        tag = torch.where(first, begins[role].unsqueeze(2), goes_on[role].unsqueeze(2))
        return torch.where(chosen.unsqueeze(3), F.one_hot(tag, self.tags).to(y.dtype), y.unsqueeze(1))

    def marks(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
        """Return the tags that begin each role and that continue it, ``O`` first, and which continue any.

        >>> Roles(5, ("O", "B-A0", "I-A0", "B-A1", "I-A1")).marks()[:2]
        (tensor([0, 1, 3]), tensor([0, 2, 4]))
        """
        return _marks(self.names, torch.device(device))


@lru_cache(maxsize=16)
def _marks(names: tuple[str, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Make `Roles.marks` once for each device."""
    kinds = [name[2:] for name in names if name.startswith("B-")]
    begins = [names.index(name) for name in ("O", *(f"B-{kind}" for kind in kinds))]
    goes_on = [names.index(name) for name in ("O", *(f"I-{kind}" for kind in kinds))]
    inside = [name.startswith("I-") for name in names]
    return tuple(torch.tensor(part, device=device) for part in (begins, goes_on, inside))  # type: ignore[return-value]


@dataclass(frozen=True)
class Trees(Tags):
    """Constituency trees, as tags ``names`` that spell them word by word (`lossnet.brackets`).

    Decoding finds the likeliest tags that spell a tree, so that a tree comes of any probabilities.

    >>> trees = Trees(6, ("l", "l L", "l R", "r", "r L", "r R"))
    >>> names = trees.decode(torch.tensor([[[0, 0.6, 0.4, 0, 0, 0], [0, 0, 0.9, 0.1, 0, 0]]])).argmax(-1)
    >>> [trees.names[name] for name in names[0]]
    ['l L', 'r']
    """

    def __post_init__(self) -> None:
        missing = set(Kind) - {read_step(name).kind for name in self.names}
        if missing:
            kinds = ", ".join(kind.name for kind in sorted(missing))
            raise ValueError(f"no tag is of the kind {kinds}; add those of lossnet.brackets.PLAIN")

    def decode(self, relaxed: Tensor) -> Tensor:
        if not relaxed.numel():
            return relaxed
        # Some sentences at a time: with hundreds of tags, copies of all would take gigabytes.
        return torch.cat([self._decode(part) for part in relaxed.split(_TOGETHER)])

    def _decode(self, relaxed: Tensor) -> Tensor:
        real = relaxed.sum(-1) > 0
        chances = relaxed.clamp(min=torch.finfo(relaxed.dtype).tiny).log()
        kinds = _kinds(self.names, relaxed.device)
        best, tags = zip(*(chances.where(kinds == kind, -torch.inf).max(-1) for kind in Kind), strict=True)
        steps = _likeliest_steps(torch.stack(best, -1), real)
        chosen = torch.stack(tags, -1).gather(2, steps.unsqueeze(2)).squeeze(2)
        return F.one_hot(chosen, self.tags).to(relaxed.dtype) * real.unsqueeze(-1)

    def hold(self, tags: Tensor, mask: Tensor) -> Tensor:
        """Return whether sentences' tags ``(batch, length)`` spell trees, ``(batch,)``."""
        kinds = _kinds(self.names, tags.device)[tags]
        changes = torch.tensor([kind.change for kind in Kind], device=tags.device)[kinds]
        waiting = (changes * mask).cumsum(1)
        _, last = _borders(mask)
        fine = torch.where(last, (waiting == 0) & (kinds >= Kind.LAST), (waiting > 0) & (kinds < Kind.LAST))
        return (fine | ~mask).all(1)

    def constraints(self, device: torch.device | str = "cpu") -> Constraints:
        """Return which tags may be neighbours; that these spell a tree takes more."""
        kinds = _kinds(self.names, torch.device(device))
        only, up, last = kinds == Kind.ONLY, kinds == Kind.UP, kinds >= Kind.LAST
        return Constraints(~last.unsqueeze(1) & ~only, up | only, last)


def _likeliest_steps(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the kinds of steps ``(batch, length)`` with the highest sum of scores that make a tree.

    ``scores`` are those of kinds, ``(batch, length, kinds)``.  Viterbi's algorithm, with the number of
    branchings whose right child is still to come for its state.
    """
    batch, length, _ = scores.shape
    ends = mask.sum(1) - 1
    never = torch.finfo(scores.dtype).min / (2 * length + 2)
    up, level, down = scores[:, :, : Kind.LAST].unsqueeze(-1).unbind(2)
    # Each of them takes a word of its own: half the words at most are waiting.  States beside are never.
    best = scores.new_full((batch, max(length // 2, 1) + 2), never)
    best[:, 1:2] = up[:, 0]
    sources = []
    for place in range(1, length):
        before = F.pad(best[:, :-1], (1, 0), value=never), best, F.pad(best[:, 1:], (0, 1), value=never)
        after = (before[0] + up[:, place], before[1] + level[:, place], before[2] + down[:, place])
        longer, source = torch.stack(after, -1).max(-1)
        longer[:, [0, -1]] = never
        best = torch.where((ends > place).unsqueeze(1), longer, best)
        sources.append(source)
    waiting = torch.ones_like(ends)
    steps = [torch.where(ends > 0, Kind.UP, Kind.ONLY)]
    for place in range(length - 1, 0, -1):
        step = sources[place - 1].gather(1, waiting.unsqueeze(1)).squeeze(1)
        goes_on = ends > place
        waiting = torch.where(goes_on, waiting - (Kind.LEVEL - step), waiting)
        steps.insert(1, torch.where(goes_on, step, Kind.LAST))
    return torch.stack(steps, 1)


@lru_cache(maxsize=16)
def _kinds(names: tuple[str, ...], device: torch.device) -> Tensor:
    """Return the kind of step of each tag, made once for each device."""
    return torch.tensor([read_step(name).kind for name in names], device=device)


class Penalties(NamedTuple):
    """Scores to add: of tags ``(batch, length, tags)``, of neighbours ``([batch,] tags, tags)``."""

    tags: Tensor
    pairs: Tensor


class Constraints(NamedTuple):
    """Which tags a scheme allows.

    Args:
        follows: whether a tag, the second axis, may follow another, the first, ``(tags, tags)``.
        begins: whether a tag may begin a sentence, ``(tags,)``.
        ends: whether a tag may end a sentence, ``(tags,)``.

    >>> allowed = Tags(3, ("O", "B-PER", "I-PER")).constraints()
    >>> allowed.hold(torch.tensor([[1, 2], [0, 2]]), torch.ones(2, 2, dtype=torch.bool))
    tensor([ True, False])
    """

    follows: Tensor
    begins: Tensor
    ends: Tensor

    def hold(self, tags: Tensor, mask: Tensor) -> Tensor:
        """Return whether sentences' tags ``(batch, length)`` are allowed, ``(batch,)``."""
        first, last = _borders(mask)
        fine = (~first | self.begins[tags]) & (~last | self.ends[tags])
        neighbours = ~mask[:, 1:] | self.follows[tags[:, :-1], tags[:, 1:]]
        return fine.all(1) & neighbours.all(1)

    def penalties(self, mask: Tensor, dtype: torch.dtype) -> Penalties:
        """Return 0 where something is allowed, else less than any score of an allowed sequence."""
        first, last = (border.unsqueeze(2) for border in _borders(mask))
        # At most one for each token and one more are added up, which must not overflow.
        never = torch.finfo(dtype).min / (2 * mask.shape[1] + 2)
        forbidden = (first & ~self.begins).to(dtype) + (last & ~self.ends)
        return Penalties(never * forbidden, never * (~self.follows).to(dtype))


def _borders(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return where sentences begin and where they end, ``(batch, length)`` each."""
    return mask & ~F.pad(mask[:, :-1], (1, 0)), mask & ~F.pad(mask[:, 1:], (0, 1))


@lru_cache(maxsize=16)
def _constraints(names: tuple[str, ...], device: torch.device) -> Constraints | None:
    """Make constraints once for each device: nothing may be copied while a CUDA graph is captured."""
    bioes = any(name.startswith(("E-", "S-")) for name in names)
    iob2 = any(name.startswith("B-") for name in names) and all(
        f"B-{name[2:]}" in names for name in names if name.startswith("I-")
    )
    if not (bioes or iob2):
        return None

    def which(*prefixes: str) -> Tensor:
        return torch.tensor([name.startswith(prefixes) for name in names])

    goes_on, inside = which("I-", "E-"), which("B-", "I-").unsqueeze(1)
    unfinished = inside & bioes
    same_kind = torch.tensor([[name[2:] == before[2:] for name in names] for before in names])
    follows = (~goes_on | (inside & same_kind)) & (~unfinished | goes_on)
    return Constraints(*(part.to(device) for part in (follows, ~goes_on, ~unfinished.squeeze(1))))


def best_path(local: Tensor, transitions: Tensor, mask: Tensor) -> Tensor:
    """Return the tags ``(batch, length)`` with the highest sum of scores, by Viterbi's algorithm.

    ``local`` ``(batch, length, tags)`` scores tags, ``transitions`` neighbours: ``([batch,] tags, tags)``, or
    each pair of them by scores of its own, ``(batch, length − 1, tags, tags)``.  Where ``mask``
    ``(batch, length)`` ends, the last tag is repeated.

    >>> best_path(torch.tensor([[[1.0, 0.0], [0.0, 0.5]]]), torch.eye(2), torch.ones(1, 2) > 0)
    tensor([[0, 0]])
    """
    best, sources = local[:, 0], []
    stay = torch.arange(local.shape[2], device=local.device).expand_as(best)
    for scores, pairs, real in chain_steps(local, transitions, mask):
        longer, source = (best.unsqueeze(2) + pairs).max(1)
        best = torch.where(real.unsqueeze(1), longer + scores, best)
        sources.append(torch.where(real.unsqueeze(1), source, stay))
    path = [best.argmax(1)]
    for source in reversed(sources):
        path.append(source.gather(1, path[-1].unsqueeze(1)).squeeze(1))
    return torch.stack(path[::-1], 1)


def chain_steps(local: Tensor, transitions: Tensor, mask: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield each token's scores, those of it and the token before, and its mask, but for the first token."""
    each = transitions.unbind(1) if transitions.dim() == 4 else [transitions] * (local.shape[1] - 1)
    return zip(local.unbind(1)[1:], each, mask.unbind(1)[1:], strict=True)


@dataclass(frozen=True)
class Prediction:
    """A network's logits seen as a distribution over a space.

    ``known`` is 1 where the truth that it is compared with is known, as in a `Batch`.

    >>> prediction = Prediction(MultiLabel(2), torch.zeros(1, 2))
    >>> prediction.cross_entropy(torch.tensor([[1.0, 0.0]]))
    tensor([1.3863])
    """

    space: Space
    logits: Tensor
    mask: Tensor | None = None
    known: Tensor | None = None

    @property
    def relaxed(self) -> Tensor:
        """``ŷ = relax(A(x))``, ``(batch, *event)``."""
        return self.space.relax(self.logits, self.mask)

    def sample(self, count: int) -> Tensor:
        """Return ``count`` outputs from ``P(·|x)``, ``(batch, count, *event)``."""
        return self._sampler(count)

    @cached_property
    def _sampler(self) -> Sampler:
        return self.space.sampler(self.logits, self.mask)

    def __getstate__(self) -> dict[str, Any]:  # without what can be computed again
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def candidate_batches(self, truth: Tensor, samples: int, count: int) -> Iterator[Tensor]:
        """Yield the truth and fresh samples behind it, ``(batch, 1 + K, *event)``, ``count`` times."""
        return ops.candidate_batches(self._sampler, truth, samples, count)

    def __init_subclass__(cls) -> None:
        if "sample" in vars(cls) and "candidate_batches" not in vars(cls):
            raise TypeError(f"{cls.__name__} overrides `sample`; override `candidate_batches` as well.")

    def perturb(self, count: int, std: float) -> Tensor:
        """Return relaxed outputs of logits plus the space's Gaussian noise, ``(batch, count, *event)``."""
        logits = self.logits.unsqueeze(1).expand(-1, count, *self.logits.shape[1:])
        return self.space.relax(logits + std * self.space.gaussian(logits), self.mask)

    def log_prob(self, y: Tensor) -> Tensor:
        """Return ``log P(y|x)`` of candidates ``(…, batch, K, *event)``, as ``(…, batch, K)``."""
        return self._log_terms.of(y)

    @cached_property
    def _log_terms(self) -> LogTerms:
        with torch.set_grad_enabled(self.logits.requires_grad):
            return self.space.log_terms(self.logits, self.mask)

    def cross_entropy(self, truth: Tensor) -> Tensor:
        """Return the cross-entropy of the truth, summed over units, ``(batch,)``."""
        return self.space.cross_entropy(self.logits, truth, self.mask)

    def where_known(self) -> Prediction:
        """Return the prediction of those units alone whose truth is known; the others count as padding.

        >>> whole = Prediction(MultiLabel(2), torch.zeros(1, 2), known=torch.tensor([[1.0, 0.0]]))
        >>> whole.where_known().cross_entropy(torch.tensor([[1.0, 0.0]]))
        tensor([0.6931])
        """
        return self if self.known is None else replace(self, mask=self.known, known=None)

    def completed(self, truth: Tensor) -> Tensor:
        """Return a truth ``(batch, *event)`` in which what is unknown is drawn from this prediction.

        >>> sure = Prediction(MultiLabel(2), torch.tensor([[9e9, 9e9]]), known=torch.tensor([[1.0, 0.0]]))
        >>> sure.completed(torch.tensor([[0.0, 0.0]]))
        tensor([[0., 1.]])
        """
        return truth if self.known is None else torch.where(self.known > 0, truth, self.sample(1).squeeze(1))

    def detach(self) -> Prediction:
        """Return the same prediction, held fixed."""
        return replace(self, logits=self.logits.detach())


def _float_type(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()
