"""A trained model in a folder: weights, names, preprocessing and threshold, with no code inside.

::

    model/model.json           names, settings, task, threshold, format version
    model/model.safetensors    weights of the networks that predict, and what the task keeps
    model/energy.safetensors   the energy that taught them, where it does not predict itself

Prediction never reads the energy; `load_energy` does, for `lossnet.analysis`.  Only names from
`lossnet.build` are looked up when a folder is loaded, so loading runs no code of its author's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lossnet.build import build
from lossnet.data import Sentences
from lossnet.decoding import Decoder
from lossnet.energies import Energy
from lossnet.methods import Method
from lossnet.settings import Settings
from lossnet.tasks import LabelTask, TagTask, Task, restore
from lossnet.training import Dataset, predict

__all__ = ["Model", "ModelError", "load", "load_energy"]

FORMAT = 1


class ModelError(ValueError):
    """A model folder that cannot be used, and why."""


@dataclass
class Model:
    """What prediction needs, and nothing else.

    Args:
        method: holds the networks that predict.
        names: of the method and loss it was trained with.
        settings: that it was trained with.
        task: names of inputs and outputs and the preprocessing, the size of images, or a lexicon.
        threshold: tuned on validation data.
    """

    method: Method
    names: tuple[str, str]
    settings: Settings
    task: Task
    threshold: float

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the outputs, where they are labels."""
        return self._labels().label_names

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the input columns, where outputs are labels."""
        return self._labels().feature_names

    def _labels(self) -> LabelTask:
        if not isinstance(self.task, LabelTask):
            raise TypeError(f"this model predicts {self.task.kind}, not sets of labels")
        return self.task

    def predict_proba(self, x: Any, device: torch.device | str = "cpu") -> NDArray[np.float32]:
        """Probabilities of raw inputs: ``(instances, labels)`` for rows of features, dense or sparse, or
        ``(instances, height, width)`` for images, channels last, or ``(instances, length, tags)`` for
        sentences, zeros on padding."""
        probabilities, _ = self.probabilities(self.task.inputs(x), device)
        array: NDArray[np.float32] = probabilities.cpu().numpy()
        return array

    def predict(self, x: Any, decoder: Decoder | None = None) -> NDArray[np.uint8]:
        """Labels or pixels of raw inputs by the tuned threshold, or tags; unless another decoder is given."""
        decoder = decoder or self.task.decoder(self.threshold)
        probabilities = torch.from_numpy(self.predict_proba(x))
        return decoder(probabilities).numpy().astype(np.uint8)

    def tag(self, sentences: Sequence[str | Sequence[str]] | Sentences) -> list[list[tuple[str, str]]]:
        """Tokens and their tags, of texts or of sentences given as tokens."""
        if not isinstance(self.task, TagTask):
            raise TypeError(f"this model predicts {self.task.kind}, not tags")
        data = self.task.inputs(sentences)
        relaxed, _ = self.probabilities(data)
        return self.task.named(relaxed, data)

    def probabilities(self, data: Dataset, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Probabilities and truth of preprocessed data, ``(instances, *event)`` each, on ``device``."""
        self.method.to(device).eval()
        views = self.task.crops(self.settings)
        whole = self.method.predict if views is None else views.averaged(self.method.predict)
        return predict(whole, data, device)

    def save(self, folder: Path) -> None:
        """Writes the folder beside its place first, so that a kill never leaves half a model."""
        temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        weights = {name: tensor.detach().cpu().clone() for name, tensor in self.method.state_dict().items()}
        predictors = self.method.predictors
        tensors = {f"network/{n}": t for n, t in weights.items() if n.split(".")[0] in predictors}
        description, arrays = self.task.state()
        for name, array in arrays.items():
            tensors[name] = torch.from_numpy(np.ascontiguousarray(array))
        save_file(tensors, temporary / "model.safetensors")
        energy = _part("energy", weights)
        if energy and "energy" not in predictors:
            save_file(energy, temporary / "energy.safetensors")
        content = {
            "format": FORMAT,
            "method": self.names[0],
            "loss": self.names[1],
            "settings": dataclasses.asdict(self.settings),
            "threshold": self.threshold,
            "kind": self.task.kind,
            **description,
        }
        (temporary / "model.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)


def load(path: Path | str) -> Model:
    """The model in a folder that `Model.save` or ``lossnet train`` wrote (a run's folder will do)."""
    with _folder(path) as folder:
        model, tensors = _rebuilt(folder)
        for name, network in list(model.method.named_children()):
            if name in model.method.predictors:
                network.load_state_dict(_part(f"network/{name}", tensors))
            else:
                delattr(model.method, name)  # trained the others, never predicts
        return model


def load_energy(path: Path | str) -> Energy:
    """The energy of the model in a folder, in evaluation mode, whether it predicts itself or taught a net."""
    with _folder(path) as folder:
        model, tensors = _rebuilt(folder)
        energy = dict(model.method.named_children()).get("energy")
        if not isinstance(energy, Energy):
            raise ModelError(f"{folder}: {model.names[0]} trains without an energy")
        if "energy" in model.method.predictors:
            weights = _part("network/energy", tensors)
        elif (folder / "energy.safetensors").is_file():
            weights = load_file(folder / "energy.safetensors")
        else:
            raise ModelError(f"{folder}: the energy was not kept (energy.safetensors is missing)")
        energy.load_state_dict(weights)
        return energy.eval()


@contextmanager
def _folder(path: Path | str) -> Iterator[Path]:
    """The model folder itself; what goes wrong with it becomes a `ModelError`."""
    folder = Path(path)
    if not (folder / "model.json").is_file() and (folder / "model").is_dir():
        folder = folder / "model"
    try:
        yield folder
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no model here ({error.filename} is missing)") from error
    except ModelError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder}: damaged model folder ({error})") from error


def _rebuilt(folder: Path) -> tuple[Model, dict[str, Tensor]]:
    """The model with networks as they start, and the tensors in its file."""
    content = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise ModelError(f"{folder}: model format {found}, this version reads {FORMAT}")
    settings = Settings(**content["settings"])
    names = (str(content["method"]), str(content["loss"]))
    tensors = load_file(folder / "model.safetensors")
    kept = {name: value.numpy() for name, value in tensors.items() if not name.startswith("network/")}
    task = restore(content, kept)
    return Model(build(*names, settings, task), names, settings, task, float(content["threshold"])), tensors


def _part(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under a name, without it."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
