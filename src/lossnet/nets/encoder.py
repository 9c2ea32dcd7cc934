"""Pretrained transformers that read texts, and the network on top of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

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
        self.is_lent = False
        #: the texts read last, the weights of then, and their features, with a gradient that nobody has used
        self._last: tuple[Tensor, tuple[int, bool], Tensor] | None = None

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
        return super().train(mode)

    def remembered(self, pieces: Tensor) -> Tensor:
        """Return features of texts, held fixed: those of the last pass over the very same, if still valid."""
        if not self._holds(pieces):
            self(pieces)
        assert self._last is not None
        return self._last[2].detach()

    def _holds(self, pieces: Tensor) -> bool:
        return self._last is not None and self._last[0] is pieces and self._last[1] == self._stamp

    @property
    def _stamp(self) -> tuple[int, bool]:
        """What every change of a weight, or of dropout, changes."""
        return sum(parameter._version for parameter in self.parameters()), self.training

    def forward(self, pieces: Tensor) -> Tensor:
        if not self.is_lent:
            return self._all(pieces)
        if not torch.is_grad_enabled():
            # The task step will want the gradient of this very pass: it follows the energy's.
            with torch.set_grad_enabled(self.training):
                self._last = pieces, self._stamp, self._all(pieces)
            return self._last[2].detach()
        if self._last is not None and self._holds(pieces) and self._last[2].requires_grad:
            features = self._last[2]
            self._last = pieces, self._stamp, features.detach()
            return features
        return self._all(pieces)

    def _all(self, pieces: Tensor) -> Tensor:
        parts = [pieces] if len(pieces) <= _AT_ONCE else map(_trimmed, pieces.split(_AT_ONCE))
        return self._in_turn(self._encoded, list(parts))

    def states(self, pieces: Tensor) -> Tensor:
        """Return the last hidden states, ``(batch, length, width)``."""
        return self._in_turn(self._states, pieces.split(_AT_ONCE))

    def _in_turn(self, read: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> Tensor:
        """Return what is read of parts of a batch; of several, nothing is kept for the gradient."""
        if len(parts) == 1:
            return read(parts[0])
        if not torch.is_grad_enabled() or not any(one.requires_grad for one in self.parameters()):
            return torch.cat([read(part) for part in parts])
        return torch.cat([checkpoint(read, part, use_reentrant=False) for part in parts])

    def _states(self, pieces: Tensor) -> Tensor:
        if not pieces.numel():  # transformers refuse no text at all
            return torch.zeros(*pieces.shape, self.width, device=pieces.device)
        real = pieces >= 0
        ids = torch.where(real, pieces, self.padding)
        with _precision(pieces):
            hidden: Tensor = self.backbone(input_ids=ids, attention_mask=real.long()).last_hidden_state
        return hidden.float() if hidden.dtype == torch.bfloat16 else hidden

    def _encoded(self, pieces: Tensor) -> Tensor:
        hidden = self._states(pieces)
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
    """Let networks in ``borrower`` that borrow features read the encoder in ``lender``."""
    places = [one for one in (borrower.modules() if borrower else ()) if isinstance(one, Borrowed)]
    encoders = [one for one in (lender.modules() if lender else ()) if isinstance(one, TextEncoder)]
    if places and not encoders:
        what = "the energy shares the task net's encoder, and this method has none"
        raise ValueError(f"{what}; give it its own: energy_encoder='own' (--energy-encoder own)")
    for one in places:
        one._lender[:] = encoders[:1]
        encoders[0].is_lent = True


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
