"""What steps of training on a GPU do in kernels of their own: one, where torch would start five.

The networks of a multi-label classifier are so small that a GPU spends its time on starting kernels.  In
here are layers with their softplus and dropout, losses with their slopes, samples, and the optimizer's step;
each for several networks side by side, ``R``, of which a lone one is the case of ``R = 1``.  The functions
of this package return None where torch is to do the same: on a CPU, outside of training steps, where products
must be exact (`lossnet.precision`), for types other than float32, without Triton.

Random numbers come from words that are drawn ahead, `WORDS` for a batch, so that a network draws the same
alone and beside others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from lossnet.kernels.thin import Scaled, Thin, Used
from lossnet.precision import may_round

__all__ = [
    "WORDS",
    "Gradient",
    "Scaled",
    "Thin",
    "Used",
    "allowed",
    "candidates",
    "contrast",
    "cross_entropy",
    "gradients",
    "interact",
    "layer",
    "look_at",
    "read_out",
    "several",
    "weighed",
    "works",
]

#: a parameter's gradient, or what AdamW's kernels make it of
Gradient = Tensor | Thin | Scaled
#: products of more rows, and layers of more inputs or weights, keep a GPU busy as torch computes them
_ROWS, _INPUTS, _WEIGHTS = 128, 1 << 17, 1 << 22
#: losses of wider rows are torch's
_WIDTH = 1 << 14
#: random words of a network for a batch; few batches need more
WORDS = 64


class _Words:
    """Random words of a batch, one for each network at a time."""

    def __init__(self, words: Tensor, sets: bool) -> None:
        self._words, self._taken = words, 0
        self.sets = sets
        self._sets: dict[int, tuple[Tensor, Tensor]] = {}
        self._kept: dict[Tensor, list[Thin | Scaled]] | None = None
        self._used: dict[int, tuple[Tensor, int, Used]] = {}
        self._streams: set[torch.cuda.Stream] = set()

    @property
    def networks(self) -> int:
        """How many there are."""
        return len(self._words)

    def take(self) -> Tensor:
        """The next, ``(R,)``."""
        again, index = divmod(self._taken, self._words.shape[1])
        self._taken += 1
        word = self._words[:, index]
        return word + again * 0x9E3779B97F4A7C15 % (1 << 62) if again else word

    def remember(self, drawn: Tensor, short: Tensor) -> None:
        """Keeps the short copy of label sets."""
        self._sets[drawn.untyped_storage().data_ptr()] = drawn, short

    def short(self, y: Tensor) -> Tensor | None:
        """The short copy of these sets ``(…, labels)``, ``(…, apart)``, if they have been drawn here."""
        drawn, short = self._sets.get(y.untyped_storage().data_ptr(), (None, None))
        if drawn is None or short is None or not y.is_contiguous() or y.requires_grad:
            return None
        if y._version or drawn._version:  # they have changed since
            return None
        labels = drawn.shape[-1]
        start, rest = divmod(int(y.storage_offset()), labels)
        if rest or y.shape[-1] != labels:
            return None
        flat = short.view(-1, short.shape[-1])
        return flat[start : start + y.numel() // labels].view(*y.shape[:-1], -1)

    def look_at(self, x: Tensor) -> None:
        """See `look_at`."""
        from lossnet.kernels import inputs

        x = x.view(self.networks, -1, x.shape[-1])
        self._used[x.data_ptr()] = x, x._version, inputs.used(x)

    def used(self, x: Tensor) -> Used | None:
        """What is known of inputs ``(R, rows, inputs)``, if they have been looked at."""
        looked_at, version, used = self._used.get(x.data_ptr(), (None, 0, None))
        if looked_at is None or looked_at.shape != x.shape or looked_at.stride() != x.stride():
            return None
        return used if looked_at._version == version else None  # it may have changed since

    def gradients(self, loss: Tensor, parameters: Sequence[Tensor]) -> list[Gradient | None]:
        """See `gradients`."""
        self._kept, self._streams = {}, set()
        try:
            others = torch.autograd.grad(loss, parameters, allow_unused=True)
            kept = self._kept
        finally:
            self._kept = None
        for stream in self._streams:  # autograd has waited for what it returned only
            torch.cuda.current_stream(loss.device).wait_stream(stream)
        return [_total(kept.get(one, []), other) for one, other in zip(parameters, others, strict=True)]

    def keep(self, weight: Tensor, bias: Tensor | None, upright: bool) -> Callable[[Tensor, Tensor], bool]:
        """What keeps the gradients of a layer's parameters, while there is somebody to take them."""
        plain = _is_plain(weight) and (bias is None or _is_plain(bias))

        def keep(x: Tensor, slope: Tensor) -> bool:
            if self._kept is None or not plain:
                return False
            used = self.used(x) if upright else None
            left, right = (x, slope) if upright else (slope, x)
            left = _in_fours(left) if used is None else used.x
            self._add(weight, Thin(left, right, weight.shape, used))
            if bias is not None:
                self._add(bias, Thin(None, slope, bias.shape))
            return True

        return keep

    def keep_scaled(self, weight: Tensor) -> Callable[[Tensor, Tensor], bool]:
        """What keeps the gradient of a parameter that is made of values and a factor."""
        plain = _is_plain(weight)

        def keep(values: Tensor, factor: Tensor) -> bool:
            if self._kept is None or not plain:
                return False
            self._add(weight, Scaled(values, factor, weight.shape))
            return True

        return keep

    def _add(self, parameter: Tensor, gradient: Thin | Scaled) -> None:
        assert self._kept is not None
        self._kept.setdefault(parameter, []).append(gradient)
        if parameter.is_cuda:
            self._streams.add(torch.cuda.current_stream(parameter.device))


def _is_plain(parameter: Tensor) -> bool:
    """Whether nobody else wants to see a parameter's gradient, and its numbers lie in their order."""
    wanted = parameter.is_leaf and parameter.requires_grad
    return wanted and parameter.is_contiguous() and not parameter._backward_hooks


def _in_fours(values: Tensor) -> Tensor:
    """Numbers ``(R, rows, n)`` with room behind each row, up to a multiple of four."""
    size = values.shape[-1]
    if size % 4 == 0:
        return values
    wider = values.new_empty(*values.shape[:-1], size + -size % 4)
    wider[..., :size] = values
    return wider


def _total(kept: Sequence[Thin | Scaled], other: Tensor | None) -> Gradient | None:
    """The sum of parts of a gradient."""
    if len(kept) == 1 and other is None:
        return kept[0]
    for part in kept:
        other = part.dense() if other is None else other + part.dense()
    return other


_words: ContextVar[_Words | None] = ContextVar("words", default=None)


@contextmanager
def allowed(words: Tensor | None, sets: bool = True) -> Iterator[None]:
    """In here kernels are used where they can be, with random words ``(R, n)``, int64.

    ``sets`` says that the truth is made of ones and zeros, as `candidates` wants it.

    >>> with allowed(torch.zeros(1, 8, dtype=torch.int64)):
    ...     layer(torch.ones(1, 2), torch.ones(2, 3), None, upright=True) is None  # on a CPU
    True
    """
    token = _words.set(None if words is None else _Words(words, sets))
    try:
        yield
    finally:
        _words.reset(token)


def layer(
    x: Tensor, weight: Tensor, bias: Tensor | None, upright: bool, active: bool = False, dropout: float = 0.0
) -> Tensor | None:
    """``x W + b``, its softplus where ``active``, and of that what dropout leaves; ``(R·b, …, outputs)``.

    Inputs are ``(R·b, …, inputs)``, weights ``(R, inputs, outputs)`` if ``upright`` and else ``(R, outputs,
    inputs)``, or without ``R`` for one network.
    """
    words = _words_for(x, weight)
    if words is None or not 0 <= dropout < 1:
        return None
    owner, weight = weight, weight if weight.dim() == 3 else weight.unsqueeze(0)
    inputs, outputs = weight.shape[1:] if upright else weight.shape[:0:-1]
    if inputs > _INPUTS or inputs * outputs > _WEIGHTS or inputs != x.shape[-1] or len(x) == 0:
        return None
    rows = x.reshape(len(weight), -1, inputs)
    if rows.shape[1] > _ROWS:
        short = words.short(x) if upright and bias is None and not active else None
        if short is None:
            return None
        from lossnet.kernels import sets

        return sets.mix(short.view(*rows.shape[:2], -1), weight).view(*x.shape[:-1], -1)
    from lossnet.kernels import layers

    used = words.used(rows) if upright else None
    keep = words.keep(owner, bias, upright)
    bias = None if bias is None else bias.view(len(weight), -1)
    word = words.take() if dropout else None
    return layers.layer(rows, weight, bias, upright, active, dropout, word, keep, used).view(
        *x.shape[:-1], outputs
    )


def gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Gradient | None]:
    """The gradient of ``loss`` by each parameter, or None for those that have no part in it.

    Those of layers are left as they are made, for the kernels of AdamW to multiply.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> gradients(weight.sum(), [weight])
    [tensor([1., 1.])]
    """
    words = _words_for(loss)
    if words is None or not several(loss.device):
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))
    return words.gradients(loss, parameters)


def look_at(x: Tensor) -> None:
    """Notes which inputs ``(R·b, inputs)`` of a batch are in use, so that steps of other weights may wait.

    From here on, `gradients` of the first layer's weights are of those in use: whoever takes steps along them
    settles the others before anybody reads those.
    """
    words = _words_for(x)
    if words is None or x.dim() != 2 or not x.is_contiguous() or x.shape[1] > _INPUTS:
        return
    if len(x) <= _ROWS * words.networks and several(x.device):
        words.look_at(x)


def read_out(hidden: Tensor, weights: Tensor) -> Tensor | None:
    """``Σ_j v_j softplus(h_j)`` of ``(R·b, K, hidden)``, as ``(R·b, K)``.

    Weights are those of a layer to one output, ``(R, 1, hidden)`` or ``(1, hidden)``.
    """
    if _words_for(hidden, weights) is None or not 0 < hidden.shape[-1] == weights.shape[-1] <= 1024:
        return None
    from lossnet.kernels import readout

    flat = weights.flatten(0, -2)
    return readout.read_out(hidden.reshape(len(flat), -1, hidden.shape[-1]), flat).view(hidden.shape[:-1])


def interact(y: Tensor, mixing: Tensor, weights: Tensor) -> Tensor | None:
    """``Σ_j v_j softplus(Σ_i M_ij y_i)`` of `candidates` ``(R·b, K, labels)``, as ``(R·b, K)``.

    ``M`` is ``(R, labels, hidden)``, ``v`` ``(R, 1, hidden)``, of several networks.
    """
    words = _words_for(y, mixing, weights)
    if words is None or mixing.dim() != 3 or weights.dim() != 3 or len(mixing) == 1:
        return None
    short = words.short(y)
    networks, labels, hidden = mixing.shape
    if short is None or labels != y.shape[-1] or weights.shape != (networks, 1, hidden) or hidden > 1024:
        return None
    if y[..., 0].numel() // networks > _WIDTH or not several(y.device):
        return None
    from lossnet.kernels import sets

    rows = short.view(networks, -1, short.shape[-1])
    return sets.interact(rows, mixing, weights.squeeze(1), words.keep_scaled(mixing)).view(y.shape[:-1])


def contrast(energies: Tensor, offset: Tensor | float) -> Tensor | None:
    """``−log softmax(offset − E)`` of the first of candidates, ``(batch,)``; both are ``(batch, 1 + K)``."""
    if not isinstance(offset, Tensor) or offset.requires_grad or offset.shape != energies.shape:
        return None
    if energies.dim() != 2 or energies.shape[1] > _WIDTH:
        return None
    if _words_for(energies, offset) is None:
        return None
    from lossnet.kernels import losses

    return losses.contrast(energies, offset)


def cross_entropy(logits: Tensor, truth: Tensor) -> Tensor | None:
    """``Σ_i softplus(l_i) − y_i l_i`` of logits and truth ``(batch, labels)``, ``(batch,)``."""
    if truth.requires_grad or truth.shape != logits.shape or logits.dim() != 2 or logits.shape[1] > _WIDTH:
        return None
    if _words_for(logits, truth) is None:
        return None
    from lossnet.kernels import losses

    return losses.cross_entropy(logits, truth)


def candidates(logits: Tensor, truth: Tensor, samples: int, count: int) -> Tensor | None:
    """The truth and samples beside it, ``count`` times, ``(count, R·b, 1 + samples, labels)``.

    Logits and truth are ``(R·b, labels)``; NaN is never drawn.
    """
    words = _words_for(logits, truth)
    if words is None or not words.sets or truth.shape != logits.shape:
        return None
    from lossnet.kernels import sets

    drawn, short = sets.draw(logits, truth, samples, count, words.take())
    words.remember(drawn, short)
    return drawn


def weighed(y: Tensor, weights: Tensor) -> Tensor | None:
    """``Σ weights · y`` of `candidates` ``(…, batch, K, labels)``, as ``(…, batch, K)``.

    Weights are ``(batch, labels)``.
    """
    words = _words_for(y, weights)
    short = None if words is None else words.short(y)
    if short is None or weights.shape != (y.shape[-3], y.shape[-1]):
        return None
    from lossnet.kernels import sets

    return sets.weigh(short, weights)


def _words_for(*tensors: Tensor) -> _Words | None:
    """Where random words are to be had, if kernels are to work on these tensors."""
    if torch.compiler.is_compiling():
        return None
    words = _words.get()
    if words is None or not all(
        tensor.is_cuda and tensor.dtype == torch.float32 and tensor.layout == torch.strided
        for tensor in tensors
    ):
        return None
    if torch._C._functorch.maybe_current_level() is not None:  # one tensor stands for many inside vmap
        return None
    fits = may_round() and not torch.is_autocast_enabled("cuda") and _work(tensors[0].device)
    return words if fits else None


@cache
def works(device: torch.device) -> bool:
    """Whether AdamW's kernels can be made and run there: Triton needs a compiler, and a GPU that it knows."""
    return find_spec("triton") is not None and _runs(_step, device)


@cache
def _work(device: torch.device) -> bool:
    """Whether the others do: they need tensor cores that know TF32."""
    return works(device) and _runs(_layers, device)


@cache
def several(device: torch.device) -> bool:
    """Whether those do that several networks have beside them."""
    return _work(device) and _runs(_beside, device)


def _runs(trial: Callable[[torch.device], None], device: torch.device) -> bool:
    try:
        trial(device)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"torch's slower kernels are used, since Triton fails: {reason}", stacklevel=2)
        return False
    return True


def _step(device: torch.device) -> None:
    from lossnet.kernels import adamw

    one, other, first, second = ([torch.ones(3, device=device)] for _ in range(4))
    steps, rate, decay, clip = (torch.ones(1, device=device) for _ in range(4))
    adamw.adamw(one, other, first, second, [steps], rate, decay, clip, (0.9, 0.999), 1e-8)


def _layers(device: torch.device) -> None:
    from lossnet.kernels import layers, sets

    word = torch.ones(1, dtype=torch.int64, device=device)
    x = torch.ones(1, 16, 16, device=device)
    weight = torch.ones(1, 16, 16, device=device, requires_grad=True)
    _, short = sets.draw(x[0], x[0], 3, 1, word)
    with torch.enable_grad():
        hidden = layers.layer(x, weight, None, True, True, 0.5, word)
        torch.autograd.grad(hidden.sum() + sets.mix(short.view(1, -1, 16), weight).sum(), weight)


def _beside(device: torch.device) -> None:
    from lossnet.kernels import adamw, inputs, layers, sets

    word = torch.ones(2, dtype=torch.int64, device=device)
    x = torch.ones(2, 16, 16, device=device)
    used = inputs.used(x)
    mixing, weights = (
        torch.ones(2, *shape, device=device, requires_grad=True) for shape in ((16, 16), (16,))
    )
    with torch.enable_grad():
        energies = sets.interact(x.to(torch.bfloat16), mixing, weights)
        torch.autograd.grad(energies.sum(), (mixing, weights))
    layers.layer(x, x, None, True, True, 0.5, word, used=used)
    numbers = torch.ones(2, device=device)
    made = Thin(used.x, x, x.shape, used), Thin(None, x, x[0].shape), Scaled(x, numbers, x.shape)
    ours, first, second = ([torch.ones(gradient.shape, device=device) for gradient in made] for _ in range(3))
    steps, betas = [numbers.clone() for _ in made], (0.9, 0.999)
    adamw.adamw(ours, made, first, second, steps, numbers, numbers, numbers, betas, 1e-8)
    adamw.settle(ours[0], first[0], second[0], steps[0], numbers, numbers, betas, 1e-8, used, 2)
