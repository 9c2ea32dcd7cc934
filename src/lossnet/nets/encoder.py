"""Pretrained transformers that read texts, and the network on top of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from lossnet.nets.layers import MLP, Dropout
from lossnet.nets.recurrent import Tokens, WordVectors

#: weights that are trained, of none, the top layers, LoRA adapters, or all
Training = Literal["none", "top", "lora", "all"]
#: the encoder that an energy reads, its own or the task net's
Sharing = Literal["own", "shared"]
#: layers that ``top`` trains, and the rank of LoRA's matrices
_TOP_LAYERS, _RANK = 2, 8
#: rates in shares of the network's own: of the last layer, of what a layer further down has of that, of LoRA
_LAST_LAYER, _LAYER_BELOW, _ADAPTERS = 0.05, 0.8, 0.5
#: texts that go through a transformer at once
_AT_ONCE = 32


class TextEncoder(nn.Module):
    """A transformer's features of texts, ``(batch, width)``.

    The last hidden states, averaged over a text's pieces (or of its first one), are scaled to the length
    ``√width``, so that a feature varies about as much as a standardised column.

    Inputs are numbers of word pieces ``(batch, length)``, -1 on padding.  More than 32 texts go through the
    transformer in turn and, in training, once more for the gradient, so that memory does not grow with the
    batch.  In training on a GPU, matrices are multiplied in bfloat16.

    Args:
        config: of the transformer, as its ``config.json`` has it; code that it names is never run.
        pooling: ``"mean"`` or ``"first"``.
        padding: the number of the piece that stands for padding.
        train: which weights are trained: ``"none"``, those of the two ``"top"`` layers, ``"lora"`` adapters
            of rank 8, or ``"all"``.  Lower layers are trained at lower rates, see `rates`.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        pooling: Literal["mean", "first"] = "mean",
        padding: int = 0,
        train: Training = "none",
    ) -> None:
        super().__init__()
        self.backbone = _transformer(config)
        self.pooling, self.padding = pooling, padding
        self.width = int(self.backbone.config.hidden_size)
        for place, parameter in self._by_layer():
            parameter.requires_grad_(train == "all" or (train == "top" and place < _TOP_LAYERS))
        self._train = train
        self.is_read_twice = False
        #: the last pass, with a gradient that nobody has used
        self._last: _Pass | None = None
        self._below = _Below(self.backbone, train)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take a transformer's weights, by their names in its file; a ValueError says what does not fit."""
        own, prefix = self.backbone.state_dict(), f"{self.backbone.base_model_prefix}."
        given = {name.removeprefix(prefix): value for name, value in weights.items()}
        for name, value in own.items():
            if name not in given:
                raise ValueError(f"its weights lack {name}")
            if given[name].shape != value.shape:
                shapes = f"{tuple(given[name].shape)}, not {tuple(value.shape)}"
                raise ValueError(f"its weight {name} has the shape {shapes}")
        # Copies: the networks of one run start from the same weights.
        self.backbone.load_state_dict({name: given[name].float().clone() for name in own}, assign=True)

    def adapt(self) -> None:
        """Add LoRA's adapters, if these are what is trained; they start as no change."""
        if self._train != "lora":
            return
        try:
            import peft
            from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS
        except ImportError:
            raise ImportError("LoRA adapters need peft: pip install 'lossnet[text]'") from None
        targets: Any = TARGETS.get(self.backbone.config.model_type, "all-linear")
        config = peft.LoraConfig(r=_RANK, lora_alpha=2 * _RANK, target_modules=targets)
        self.backbone = peft.inject_adapter_in_model(config, self.backbone)

    def exact(self) -> None:
        """Compute attention step by step from now on, as second derivatives need it."""
        self.backbone.set_attn_implementation("eager")

    def rates(self) -> Iterator[tuple[nn.Parameter, float]]:
        """Yield trained parameters and their learning rates, in shares of the network's own.

        The last layer has 0.05 of it, each layer below 0.8 of the one above, LoRA's adapters 0.5.
        """
        for place, parameter in self._by_layer():
            share = _ADAPTERS if self._train == "lora" else _LAST_LAYER * _LAYER_BELOW**place
            yield parameter, share

    def train(self, mode: bool = True) -> TextEncoder:
        self._last = None  # of another dropout, and a graph cannot be copied
        self._below.forget()
        return super().train(mode)

    def remembered(self, pieces: Tensor) -> Tensor:
        """Return features of texts, held fixed: those of the last pass over the very same, if still valid."""
        if not self._holds(pieces, "features"):
            self(pieces)
        assert self._last is not None
        return self._last.read.detach()

    def _holds(self, pieces: Tensor, what: str) -> bool:
        last = self._last
        return last is not None and last.pieces is pieces and last.what == what and last.stamp == self._stamp

    @property
    def _stamp(self) -> tuple[int, bool]:
        """What every change of a weight, or of dropout, changes."""
        return sum(parameter._version for parameter in self.parameters()), self.training

    def forward(self, pieces: Tensor) -> Tensor:
        is_whole = len(pieces) <= _AT_ONCE
        parts = [pieces] if is_whole else [_trimmed(part) for part in pieces.split(_AT_ONCE)]
        return self._once("features", pieces, partial(self._in_turn, self._encoded, pieces, parts))

    def states(self, pieces: Tensor) -> Tensor:
        """Return the last hidden states, ``(batch, length, width)``."""
        parts = pieces.split(_AT_ONCE)
        return self._once("states", pieces, partial(self._in_turn, self._states, pieces, parts))

    def _once(self, what: str, pieces: Tensor, read: Callable[[], Tensor]) -> Tensor:
        """Return what is read of texts, in a pass of its own unless the last one will do."""
        if not self.is_read_twice:
            return read()
        if not torch.is_grad_enabled():
            # The task step will want the gradient of this very pass: it follows the energy's.
            with torch.set_grad_enabled(self.training):
                self._last = _Pass(pieces, what, self._stamp, read())
            return self._last.read.detach()
        if self._last is not None and self._holds(pieces, what) and self._last.read.requires_grad:
            whole, self._last = self._last.read, self._last._replace(read=self._last.read.detach())
            return whole
        return read()

    def _in_turn(
        self, read: Callable[[Tensor, Tensor | None], Tensor], pieces: Tensor, parts: Sequence[Tensor]
    ) -> Tensor:
        """Return what is read of parts of a batch; of several, nothing is kept for the gradient."""
        below: Sequence[Tensor | None] = [None] * len(parts)
        if self.training and self._below.is_apart(partial(self._run, parts[0][:1])):
            with _precision(pieces):
                below = self._below.states(pieces, parts, self._run)
        both = list(zip(parts, below, strict=True))
        if len(both) == 1:
            return read(*both[0])
        if not torch.is_grad_enabled() or not any(one.requires_grad for one in self.parameters()):
            return torch.cat([read(*part) for part in both])
        return torch.cat([checkpoint(read, *part, use_reentrant=False) for part in both])

    def _run(self, pieces: Tensor) -> Tensor:
        if not pieces.numel():  # transformers refuse no text at all
            return torch.zeros(*pieces.shape, self.width, device=pieces.device)
        real = pieces >= 0
        ids = torch.where(real, pieces, self.padding)
        hidden: Tensor = self.backbone(input_ids=ids, attention_mask=real.long()).last_hidden_state
        return hidden

    def _states(self, pieces: Tensor, below: Tensor | None = None) -> Tensor:
        with _precision(pieces), nullcontext() if below is None else self._below.given(below):
            hidden = self._run(pieces)
        return hidden.float() if hidden.dtype == torch.bfloat16 else hidden

    def _encoded(self, pieces: Tensor, below: Tensor | None = None) -> Tensor:
        hidden = self._states(pieces, below)
        if self.pooling == "first":
            pooled = hidden[:, 0]
        else:
            real = (pieces >= 0).to(hidden.dtype).unsqueeze(2)
            pooled = (hidden * real).sum(1) / real.sum(1).clamp(min=1)
        features: Tensor = normalize(pooled, dim=1) * self.width**0.5
        return features

    def _by_layer(self) -> Iterator[tuple[int, nn.Parameter]]:
        """Yield parameters with the number of layers between them and the last one."""
        count = int(self.backbone.config.num_hidden_layers)
        for name, parameter in self.backbone.named_parameters():
            numbers = [int(part) for part in name.split(".") if part.isdigit()]
            yield (count - 1 - numbers[0] if numbers else count), parameter


class _Pass(NamedTuple):
    """Texts, whether features or states of them were read, the weights of then, and what was read."""

    pieces: Tensor
    what: str
    stamp: tuple[int, bool]
    read: Tensor


class _Below:
    """The layers of a transformer below the trained ones, which read a batch's texts once.

    Passes of one training step over the same texts begin with the last states of these, whose dropout they
    thereby share, and so do those of another network with the same layers (`share`).

    Args:
        backbone: the transformer.
        train: which of its weights are trained; there are such layers beside ``"top"`` ones alone.
    """

    def __init__(self, backbone: Any, train: Training) -> None:
        count = int(backbone.config.num_hidden_layers)
        self.count = count - _TOP_LAYERS
        self._lists = [
            (owner, name)
            for owner in backbone.modules()
            for name, part in owner.named_children()
            if isinstance(part, nn.ModuleList) and len(part) == count
        ]
        self._backbone = backbone
        self._is_apart = None if train == "top" and self.count > 0 and self._lists else False
        #: the texts read last, and their states, part by part
        self._kept: dict[str, Any] = {}

    def is_apart(self, run: Callable[[], Tensor]) -> bool:
        """Whether a pass in two halves is a whole one; ``run`` makes such a pass."""
        if self._is_apart is None:
            mode = self._backbone.training
            self._backbone.eval()
            with torch.no_grad():
                whole = run()
                with self.given(self._reached(run)):
                    self._is_apart = torch.allclose(run(), whole, atol=1e-5)
            self._backbone.train(mode)
        return self._is_apart

    def states(
        self, pieces: Tensor, parts: Sequence[Tensor], run: Callable[[Tensor], Tensor]
    ) -> Sequence[Tensor]:
        """Return states of texts that come in parts, each ``(rows, length, width)``."""
        shapes = [part.shape for part in parts]
        if self._kept.get("pieces") is not pieces or self._kept["shapes"] != shapes:
            with torch.no_grad():
                states = [self._reached(partial(run, part)) for part in parts]
            self._kept.update(pieces=pieces, shapes=shapes, states=states)
        kept: Sequence[Tensor] = self._kept["states"]
        return kept

    def share(self, other: _Below) -> None:
        """Keep states together with another network, if its layers are the same."""
        mine, its = (one._frozen() for one in (self, other))
        if len(mine) == len(its) and all(map(torch.equal, mine, its)):
            self._kept = other._kept

    def forget(self) -> None:
        self._kept.clear()

    def _frozen(self) -> list[Tensor]:
        return [one for one in self._backbone.parameters() if not one.requires_grad and not one.is_meta]

    def _reached(self, run: Callable[[], Tensor]) -> Tensor:
        """Return the last states of these layers in a pass through them alone."""
        reached: list[Any] = []
        with self._only(slice(self.count)) as layers:
            last = layers[-1]
            handle = last.register_forward_hook(lambda module, given, output: reached.append(output))
            try:
                run()
            finally:
                handle.remove()
        (output,) = reached
        states: Tensor = output if isinstance(output, Tensor) else output[0]
        return states

    @contextmanager
    def given(self, states: Tensor) -> Iterator[None]:
        """Pass through the layers above alone, from states of those here."""

        def put(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return ((states, *given[1:]), named) if given else (given, {**named, "hidden_states": states})

        with self._only(slice(self.count, None)) as layers:
            handle = layers[0].register_forward_pre_hook(put, with_kwargs=True)
            try:
                yield
            finally:
                handle.remove()

    @contextmanager
    def _only(self, some: slice) -> Iterator[nn.ModuleList]:
        owner, name = self._lists[0]
        layers: Any = getattr(owner, name)
        setattr(owner, name, layers[some])
        try:
            yield getattr(owner, name)
        finally:
            setattr(owner, name, layers)


class Borrowed(nn.Module):
    """The features that another network's `TextEncoder` has of texts, held fixed.

    Where that network has just read the same texts with the same weights, as SEAL's task net has before a
    step of the energy, they are its features of then: reading them costs nothing.  The task step that follows
    descends the gradient of the same pass, with the same dropout: a step reads texts once.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self._lender: list[TextEncoder] = []  # in a list: its weights belong to the other network

    def forward(self, pieces: Tensor) -> Tensor:
        (lender,) = self._lender
        with torch.no_grad():
            return lender.remembered(pieces)


def lend(lender: nn.Module | None, borrower: nn.Module | None) -> None:
    """Let a task net and an energy read texts together, as far as their encoders allow.

    Networks in ``borrower`` that borrow features read the encoder in ``lender``; those that have encoders of
    their own begin with what frozen layers there have made of the same texts.  The task net's pass for the
    prediction that an energy learns from serves the task step that follows it.
    """
    places = [one for one in (borrower.modules() if borrower else ()) if isinstance(one, Borrowed)]
    own, encoders = (
        [one for one in (net.modules() if net else ()) if isinstance(one, TextEncoder)]
        for net in (borrower, lender)
    )
    if places and not encoders:
        what = "the energy shares the task net's encoder, and this method has none"
        raise ValueError(f"{what}; give it its own: energy_encoder='own' (--energy-encoder own)")
    for place in places:
        place._lender[:] = encoders[:1]
    for one in encoders[:1] if places or own else ():
        one.is_read_twice = True
        for other in own:
            other._below.share(one._below)


class EncodedMLP(nn.Module):
    """An `MLP` over an encoder's features of texts, its own or `Borrowed` ones, and the numbers beside them.

    Inputs are word pieces ``(batch, length)``, or a mapping of those, ``pieces``, and numbers, ``beside``.
    """

    def __init__(self, encoder: TextEncoder | Borrowed, mlp: MLP) -> None:
        super().__init__()
        self.encoder, self.mlp, self.width = encoder, mlp, mlp.width

    def forward(self, x: Any) -> Tensor:
        outputs: Tensor = self.mlp(self._read(x))
        return outputs

    def features(self, x: Any) -> Tensor:
        """Return what the outputs are read from, ``(batch, width)``."""
        return self.mlp.features(self._read(x))

    @property
    def head(self) -> nn.Module:
        """The last layer, from features to outputs."""
        return self.mlp.head

    def _read(self, x: Any) -> Tensor:
        features: Tensor = self.encoder(x if isinstance(x, Tensor) else x["pieces"])
        return features if isinstance(x, Tensor) else torch.cat([features, x["beside"]], 1)


class EncodedTokens(nn.Module):
    """A transformer's states of tokens, each one's first word piece: sentences give `Tokens`.

    Inputs are a mapping of ``pieces`` ``(batch, most pieces)`` and ``first`` ``(batch, most tokens)``, the
    place of each token's first piece; both are -1 on padding.
    """

    def __init__(self, encoder: TextEncoder, dropout: float = 0) -> None:
        super().__init__()
        self.encoder, self.dropout, self.width = encoder, Dropout(dropout), encoder.width

    @property
    def words(self) -> TextEncoder:
        """The network whose vectors language models of tags read, which is the transformer again."""
        return self.encoder

    def forward(self, x: Mapping[str, Tensor]) -> Tokens:
        real = x["first"] >= 0
        states = self.dropout(_token_states(self.encoder, x)) * real.unsqueeze(2)
        return Tokens(states, states, real)


class EncodedWords(WordVectors):
    """Vectors of tokens by a pretrained transformer, beside those of their columns and characters.

    Inputs are a mapping of ``tokens``, as `WordVectors` reads them, and of ``states``
    ``(batch, length, width)``, which were computed before.  An ``encoder`` that is trained computes them
    here, and reads ``pieces`` and ``first`` as `EncodedTokens` does.

    Args:
        states: width of states that are given, 0 to see none, or the encoder.
        columns: how many values each column of tokens can take.
        characters: how many values a character can take; 0 where there are none.
        dropout: the chance that training sees a token's columns and characters, but not its state.

    >>> words = EncodedWords(6, columns=(4,))
    >>> words({"tokens": torch.ones(2, 5, 2, dtype=torch.long), "states": torch.rand(2, 5, 6)}).shape
    torch.Size([2, 5, 10])
    """

    def __init__(
        self,
        states: int | TextEncoder,
        columns: Sequence[int] = (),
        characters: int = 0,
        dropout: float = 0,
    ) -> None:
        super().__init__(torch.zeros(2, 0), columns=columns, characters=characters)
        self.hidden = dropout
        self.encoder = states if isinstance(states, TextEncoder) else None
        self.states = states.width if isinstance(states, TextEncoder) else states
        self.width += self.states

    def forward(self, x: Mapping[str, Tensor]) -> Tensor:  # type: ignore[override]
        """Return vectors ``(batch, length, self.width)``."""
        if not self.states:
            return super().forward(x["tokens"])
        states = x["states"] if self.encoder is None else _token_states(self.encoder, x)
        if self.training and self.hidden:
            hidden = torch.rand(states.shape[:2], device=states.device) < self.hidden
            states = states.masked_fill(hidden.unsqueeze(2), 0)
        return torch.cat([states, super().forward(x["tokens"])], -1)


def _token_states(encoder: TextEncoder, x: Mapping[str, Tensor]) -> Tensor:
    """Return the states of tokens' first pieces, ``(batch, most tokens, width)``."""
    places = x["first"].clamp(min=0).unsqueeze(2).expand(-1, -1, encoder.width)
    return encoder.states(x["pieces"]).gather(1, places)


def _transformer(config: Mapping[str, Any]) -> Any:
    """Return a transformer without pooling head; on the meta device, its buffers are real all the same."""
    try:
        from accelerate import init_empty_weights
        from transformers import AutoConfig, AutoModel
    except ImportError as error:
        raise ImportError(
            f"encoders need transformers ({error.name} is missing): pip install 'lossnet[text]'"
        ) from None
    known = {name: value for name, value in config.items() if name != "model_type"}
    shape = AutoConfig.for_model(config["model_type"], **known)
    models: Any = AutoModel
    meta = torch.get_default_device().type == "meta"
    # Weights come later, so none are drawn; buffers such as positions come from nowhere else.
    with torch.device("cpu"), init_empty_weights(include_buffers=False) if meta else nullcontext():
        network = models.from_config(shape, trust_remote_code=False)
    if hasattr(network, "pooler"):
        network.pooler = None  # which would be weights that nothing reads
    return network


def _trimmed(pieces: Tensor) -> Tensor:
    """Return pieces without columns of nothing but padding."""
    return pieces[:, : max(int((pieces >= 0).sum(1).max()), 1)]


def _precision(x: Tensor) -> AbstractContextManager[None]:
    """Multiply in bfloat16 in training on a GPU; what is cached or predicted is the same everywhere."""
    return torch.autocast("cuda", torch.bfloat16) if x.is_cuda and torch.is_grad_enabled() else nullcontext()
