"""A trained model in a folder: weights, names, preprocessing and threshold, with no code inside.

::

    model/model.json          names, settings, threshold, format version
    model/model.safetensors   weights of the networks that predict, and the preprocessing

Only names from `lossnet.build` are looked up when a folder is loaded, so loading runs no code of its
author's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
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
from lossnet.data import MultiLabelData, Preprocessor
from lossnet.decoding import Decoder, Threshold
from lossnet.methods import Method
from lossnet.settings import Settings
from lossnet.training import predict

__all__ = ["Model", "ModelError", "load"]

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
        feature_names: of the input columns.
        label_names: of the outputs.
        preprocessor: fitted on the training data.
        threshold: tuned on validation data.
    """

    method: Method
    names: tuple[str, str]
    settings: Settings
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    preprocessor: Preprocessor
    threshold: float

    def predict_proba(self, x: Any, device: torch.device | str = "cpu") -> NDArray[np.float32]:
        """Probabilities ``(instances, labels)`` of raw inputs ``(instances, inputs)``, dense or sparse."""
        labels = np.zeros((x.shape[0], len(self.label_names)), dtype=np.uint8)
        data = MultiLabelData.from_arrays(x, labels, self.feature_names, self.label_names)
        probabilities, _ = self.probabilities(self.preprocessor.apply(data), device)
        return probabilities.cpu().numpy()

    def predict(self, x: Any, decoder: Decoder | None = None) -> NDArray[np.uint8]:
        """Label sets ``(instances, labels)``: by the tuned threshold, unless another decoder is given."""
        decoder = decoder or Threshold(self.threshold)
        probabilities = torch.from_numpy(self.predict_proba(x))
        return decoder(probabilities).numpy().astype(np.uint8)

    def probabilities(
        self, data: MultiLabelData, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """Probabilities and truth of preprocessed data, ``(instances, labels)`` each, on ``device``."""
        self.method.to(device).eval()
        return predict(self.method.predict, data, device)

    def save(self, folder: Path) -> None:
        """Writes the folder beside its place first, so that a kill never leaves half a model."""
        temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        tensors = {
            f"network/{name}": tensor.detach().cpu().clone()
            for name, tensor in self.method.state_dict().items()
            if name.split(".")[0] in self.method.predictors
        }
        for name, array in self.preprocessor.state().items():
            tensors[f"preprocessor/{name}"] = torch.from_numpy(np.ascontiguousarray(array))
        save_file(tensors, temporary / "model.safetensors")
        content = {
            "format": FORMAT,
            "method": self.names[0],
            "loss": self.names[1],
            "settings": dataclasses.asdict(self.settings),
            "threshold": self.threshold,
            "labels": list(self.label_names),
            "features": list(self.feature_names),
        }
        (temporary / "model.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)


def load(path: Path | str) -> Model:
    """The model in a folder that `Model.save` or ``lossnet train`` wrote (a run's folder will do)."""
    folder = Path(path)
    if not (folder / "model.json").is_file() and (folder / "model").is_dir():
        folder = folder / "model"
    try:
        content = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, dict) else None
            raise ModelError(f"{folder}: model format {found}, this version reads {FORMAT}")
        labels, features = tuple(content["labels"]), tuple(content["features"])
        settings = Settings(**content["settings"])
        names = (str(content["method"]), str(content["loss"]))
        method = build(*names, settings, inputs=len(features), labels=len(labels))
        tensors = load_file(folder / "model.safetensors")
        _load_networks(method, tensors)
        arrays = {
            name.removeprefix("preprocessor/"): tensor.numpy()
            for name, tensor in tensors.items()
            if name.startswith("preprocessor/")
        }
        preprocessor = Preprocessor.from_state(arrays)
        if len(preprocessor.impute) != len(features):
            raise ModelError(f"{folder}: preprocessing and features differ in number")
        return Model(
            method,
            names,
            settings,
            features,
            labels,
            preprocessor,
            float(content["threshold"]),
        )
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no model here ({error.filename} is missing)") from error
    except ModelError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder}: damaged model folder ({error})") from error


def _load_networks(method: Method, tensors: dict[str, Tensor]) -> None:
    for name in method.predictors:
        prefix = f"network/{name}."
        weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        method.get_submodule(name).load_state_dict(weights)
    for name, _ in list(method.named_children()):
        if name not in method.predictors:
            delattr(method, name)  # trained the others, never predicts
