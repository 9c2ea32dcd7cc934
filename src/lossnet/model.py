"""A trained model in a folder: weights, names, preprocessing and decisions, with no code inside.

::

    model/model.json           names, settings, task, calibration, decision, format version, checksums
    model/model.safetensors    weights of the networks that predict, and what the task keeps
    model/energy.safetensors   the energy that trained them, where it does not predict itself
    model/conditional.safetensors   what predicts once a part of an output is known, if anything does
    model/README.md            the model card

Prediction never reads the energy; `load_energy` does, for `lossnet.analysis`.

A folder from elsewhere runs no code: only names from `lossnet.build` are looked up, and tensors are
safetensors.  Networks are first built on PyTorch's ``meta`` device, without memory, and then take the file's
tensors if these have their shapes, so that JSON cannot ask for more memory than the file has.  Checksums
detect damage, not malice.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from lossnet.build import build
from lossnet.conditional import ENGINES, Conditional, EnergyConditional, make
from lossnet.data import Dataset, Examples
from lossnet.data.readers.text import Unknown
from lossnet.decoding import Calibration, Confidence, Decision, Decoder, calibrate, log_chance
from lossnet.energies import Energy
from lossnet.methods import Blend, Method
from lossnet.own import Factory, OwnParts
from lossnet.prediction import Predictor
from lossnet.settings import Settings
from lossnet.spaces import MultiLabel, Space
from lossnet.task import Task
from lossnet.training import predict
from lossnet.trees import tree_map

__all__ = ["Model", "ModelError", "load", "load_energy"]

FORMAT = 4
DESCRIPTION, WEIGHTS, ENERGY = "model.json", "model.safetensors", "energy.safetensors"
CONDITIONAL = "conditional.safetensors"
#: the name of decoding by the energy of a conditional model
LIKELIEST = "likeliest"
CHECKSUMS = "sha256"
#: validation instances that a confidence is fitted on at most
_MOST_JUDGED = 1000
#: names of the method and loss of an average of models
BLEND = ("blend", "none")
#: members that a blend has at most
_MOST_MEMBERS = 16
#: how models were trained before there was a setting for it
_BEFORE = {"schedule": "grouped", "regression_term": "energy"}


class ModelError(ValueError):
    """A model folder that cannot be used, and why."""


@dataclass
class Model(Predictor):
    """A model that predicts.

    Args:
        method: the networks that predict.
        names: of the method and loss that trained it.
        settings: that it was trained with.
        task: the kinds of its inputs and outputs.
        decision: what validation data have chosen for decoding.
        calibration: of the networks' outputs, fitted on validation data.
        members: names and settings of the methods that a `Blend` averages.
        conditional: what predicts once a part of an output is known.
    """

    method: Method
    names: tuple[str, str]
    settings: Settings
    task: Task
    decision: Decision = field(default_factory=Decision)
    calibration: Calibration = field(default_factory=Calibration)
    members: tuple[tuple[tuple[str, str], Settings], ...] = ()
    conditional: Conditional | None = None

    @classmethod
    def blend(cls, models: Sequence[Model], settings: Settings) -> Model:
        """Return a model that averages the probabilities of models of one task; `decide` calibrates it."""
        first = models[0]
        method = Blend([model.method for model in models], [model.calibration for model in models])
        members = tuple((model.names, model.settings) for model in models)
        return cls(method, BLEND, settings, first.task, Decision(goal=first.decision.goal), members=members)

    def probabilities(
        self, data: Dataset, device: torch.device | str = "cpu", known: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        self.method.to(device).eval()
        views = self.task.views(self.settings)
        whole = self._predict if views is None else views.averaged(self._predict)
        relaxed, truth = predict(whole, data, device)
        relaxed = self.calibration(self.method.space, relaxed)
        if known is None:
            return relaxed, truth
        return self._given(data, device, relaxed, known), truth

    def decide(self, valid: Dataset, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Fit the calibration and choose how to decode for the goal, on validation data.

        Return the calibrated probabilities and the truth of these, ``(instances, *event)`` each.
        """
        space, output, self.calibration = self.method.space, self.task.output, Calibration()
        relaxed, truth = self.probabilities(valid, device)
        if truth is None:
            raise ValueError(f"the validation data have no {output.kind} to compare with")
        self.calibration = calibrate(space, relaxed, truth)
        relaxed = self.calibration(space, relaxed)
        self.decision = output.decide(space, relaxed, truth, Decision(goal=self.decision.goal))
        self.fit_confidence(relaxed, truth)
        return relaxed, truth

    def fit_confidence(self, relaxed: Tensor, truth: Tensor) -> None:
        """Calibrate how sure the model is of whole outputs, by its energy or label by label.

        Whichever predicts better which outputs are right.  ``relaxed`` are the calibrated probabilities of
        validation data ``(instances, *event)``.
        """
        rows = torch.linspace(0, len(relaxed) - 1, min(len(relaxed), _MOST_JUDGED)).round().long()
        base, truth = relaxed[rows.to(relaxed.device)], truth[rows.to(truth.device)]
        nothing = torch.full_like(base, torch.nan)
        outputs = self._likeliest(base, nothing) if self.decision.whole else self.decoder()(base)
        right = (outputs == truth.to(outputs)).flatten(1).all(1)
        fits = {}
        for joint in (False, True) if isinstance(self.conditional, EnergyConditional) else (False,):
            chances = self._log_chances(joint, base, nothing, base, outputs)
            found = Confidence.fit(chances, right)
            fits[joint] = found.loss(chances, right), found
        joint = min(fits, key=lambda one: fits[one][0])
        numbers = dataclasses.astuple(fits[joint][1])
        self.decision = dataclasses.replace(self.decision, confidence=numbers, joint=joint)

    def confidences(
        self,
        data: Dataset,
        outputs: Tensor,
        device: torch.device | str = "cpu",
        known: Tensor | None = None,
    ) -> Tensor:
        if not self.decision.confidence:
            what = "how sure this model is of whole outputs was not calibrated"
            raise ValueError(f"{what}; call decide(valid) with validation data, or train it with some")
        base, given = self._base(data, device, known)
        relaxed = base if known is None else self._given(data, device, base, known)
        # Outputs may be padded to sentences that are not among these.
        outputs = outputs[(slice(None), *map(slice, base.shape[1:]))].to(base)
        chances = self._log_chances(self.decision.joint, base, given, relaxed, outputs)
        return Confidence(*self.decision.confidence)(chances)

    def _log_chances(
        self, joint: bool, base: Tensor, given: Tensor, relaxed: Tensor, outputs: Tensor
    ) -> Tensor:
        """Return log-probabilities of outputs ``(instances,)``: of the energy, or of independent units.

        The latter have the probabilities ``relaxed``; ``base`` are those where nothing is known.
        """
        if joint:
            return self._log_probs(base, given, outputs)[0]
        return log_chance(self.method.space, relaxed, outputs)

    def double(self) -> Model:
        """Return a copy that computes in float64, in which a row's place in a batch does not matter.

        The networks that predict are copied; the others are shared.
        """
        method = copy.copy(self.method)
        method._modules = dict(method._modules)
        for name in method.predictors:
            method._modules[name] = copy.deepcopy(method.get_submodule(name)).double()
        engine = None if self.conditional is None else copy.deepcopy(self.conditional).double()
        return dataclasses.replace(self, method=method, conditional=engine)

    def _predict(self, x: Any, mask: Tensor | None) -> Tensor:
        """Predict from inputs in the precision of the networks."""
        return self.method.predict(self._as_read(x), mask)

    def _as_read(self, x: Any) -> Any:
        """Return inputs in the precision of the networks."""
        tensors = self.method.get_submodule(self.method.predictors[0]).state_dict().values()
        types = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        return tree_map(lambda leaf: leaf.to(types[0]) if types and leaf.is_floating_point() else leaf, x)

    def _choose(
        self,
        data: Examples,
        relaxed: Tensor,
        decode: str | Decoder | None,
        device: torch.device | str,
        known: Tensor | None,
    ) -> tuple[Tensor, float | tuple[float, ...]]:
        if decode == LIKELIEST or (decode is None and self.decision.whole):
            return self.likeliest(data, device, known), self.threshold
        return super()._choose(data, relaxed, decode, device, known)

    def likeliest(
        self, data: Dataset, device: torch.device | str = "cpu", known: Tensor | None = None
    ) -> Tensor:
        """Return the likeliest label set of each instance, ``(instances, labels)``, of those searched."""
        return self._likeliest(*self._base(data, device, known))

    def _likeliest(self, base: Tensor, given: Tensor) -> Tensor:
        engine = self._joint().to(base.device)
        pairs = zip(base.split(512), given.split(512), strict=True)
        return torch.cat([engine.likeliest(*pair) for pair in pairs])

    def sample(
        self, x: Any, count: int, known: Any = None, seed: int = 0, device: torch.device | str = "cpu"
    ) -> NDArray[np.uint8]:
        """Return ``count`` label sets of each raw input, drawn from ``P(y | x)``: ``(rows, count, labels)``.

        Needs the energy of a conditional model.  ``known`` is as for `predict_proba`.
        """
        data = self.task.read(x)
        engine = self._joint().to(device)
        base, given = self._base(data, device, self._known(known, data))
        drawn = [
            engine.sample(part, told, count, seed + place)
            for place, (part, told) in enumerate(zip(base.split(512), given.split(512), strict=True))
        ]
        return torch.cat(drawn).cpu().numpy().astype(np.uint8)

    def log_prob(
        self, x: Any, y: Any, known: Any = None, seed: int = 0, device: torch.device | str = "cpu"
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return estimates of ``log P(y | x)`` of an output for each raw input, and standard errors.

        Both are ``(rows,)``.  Needs the energy of a conditional model; ``y`` and ``known`` are as for
        `predict_proba`, and ``y`` leaves nothing open.
        """
        self._joint()
        data = self.task.read(x)
        outputs = self.task.output.known(y, data.source)
        if outputs.isnan().any():
            row = int(outputs.isnan().any(1).nonzero()[0])
            raise ValueError(f"row {row} of y is not known completely; give 0 and 1 for all labels")
        base, given = self._base(data, device, self._known(known, data))
        found = self._log_probs(base, given, outputs, seed)
        values, errors = (part.cpu().numpy() for part in found)
        return values, errors

    def _log_probs(
        self, base: Tensor, given: Tensor, outputs: Tensor, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of outputs under the energy, and standard errors, ``(instances,)``."""
        engine = self._joint().to(base.device)
        parts = zip(base.split(64), given.split(64), outputs.to(base).split(64), strict=True)
        found = [engine.log_prob(part, told, y.unsqueeze(1), seed) for part, told, y in parts]
        values, errors = (torch.cat(part).squeeze(1) for part in zip(*found, strict=True))
        return values, errors

    def _base(self, data: Dataset, device: torch.device | str, known: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the task net's probabilities, and what is known."""
        base, _ = self.probabilities(data, device)
        return base, torch.full_like(base, torch.nan) if known is None else known.to(base)

    def _joint(self) -> EnergyConditional:
        """Return the energy of a conditional model; raise a ValueError if it has none."""
        if not isinstance(self.conditional, EnergyConditional):
            what = "whole outputs are drawn, judged and searched by an energy, and this model has none"
            raise ValueError(f"{what}; train it with conditional='energy' (--conditional energy)")
        return self.conditional.eval()

    def _engine(self) -> Conditional:
        """Return the engine for known parts; raise a ValueError if the model has none."""
        if self.conditional is None:
            what = "this model cannot use what is known of outputs"
            raise ValueError(f"{what}; train it with conditional='auto' (--conditional auto)")
        return self.conditional

    def _given(
        self,
        data: Dataset,
        device: torch.device | str,
        relaxed: Tensor,
        known: Tensor,
    ) -> Tensor:
        """Return what the engine answers, batch by batch; rows of which nothing is known stay as they are."""
        engine, answers = self._engine().to(device).eval(), relaxed.clone()
        if known.shape != relaxed.shape:  # shorter than the longest sentence
            told = known.new_full(relaxed.shape, torch.nan)
            told[tuple(map(slice, known.shape))] = known
            known = told
        some = (~known.isnan()).flatten(1).any(1).nonzero().flatten()
        with torch.no_grad():
            for rows in some.split(512):
                batch, own = data.batch(rows).to(device), rows.to(relaxed.device)
                event = tuple(map(slice, _event(batch.mask, relaxed)))
                place = (slice(None), *event)
                asked = known[rows].to(relaxed)[place]
                answers[(own, *event)] = engine.marginals(
                    self._as_read(batch.x), relaxed[own][place], asked, batch.mask
                )
        return answers

    def files(self) -> dict[str, bytes]:
        """Return the files of a model folder by name; `from_files` reads them."""
        weights = _on_cpu(self.method)
        predictors = self.method.predictors
        tensors = {f"network/{n}": t for n, t in weights.items() if n.split(".")[0] in predictors}
        description, arrays = self.task.state()
        for name, array in arrays.items():
            tensors[name] = torch.from_numpy(np.ascontiguousarray(array))
        files = {WEIGHTS: to_bytes(tensors)}
        energy = _part("energy", weights)
        if energy and "energy" not in predictors:
            files[ENERGY] = to_bytes(energy)
        if self.conditional is not None:
            files[CONDITIONAL] = to_bytes(_on_cpu(self.conditional))
        content = {
            "format": FORMAT,
            "method": self.names[0],
            "loss": self.names[1],
            "settings": dataclasses.asdict(self.settings),
            "calibration": dataclasses.asdict(self.calibration),
            "decision": dataclasses.asdict(self.decision),
            **description,
        }
        if isinstance(self.method, Blend):
            content["members"] = [
                {
                    "names": names,
                    "settings": dataclasses.asdict(settings),
                    "calibration": dataclasses.asdict(own),
                }
                for (names, settings), own in zip(self.members, self.method.calibrations, strict=True)
            ]
        if self.conditional is not None:
            content["conditional"] = self.conditional.engine
        content[CHECKSUMS] = {DESCRIPTION: _digest(content), **{n: _sha256(b) for n, b in files.items()}}
        return {DESCRIPTION: json.dumps(content, indent=1).encode(), **files}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], own: OwnParts | None = None) -> Model:
        """Return the model that `files` described, with all of its networks, to be trained further.

        Those that neither predict nor are the energy start anew.  Parts of your own must be given again.
        """
        with _errors_about("the model"):
            model = _restored(files, own or OwnParts())
            if model.members:
                return model
            with torch.random.fork_rng([]):
                method = build(*model.names, model.settings, model.task)
            weights = dict(model.method.state_dict())
            if ENERGY in files:
                weights |= {f"energy.{name}": value for name, value in _tensors(files, ENERGY).items()}
            method.load_state_dict(weights, strict=False)
            return dataclasses.replace(model, method=method)

    def save(self, folder: Path, card: str | None = None) -> None:
        """Write a model folder, with ``card`` as its ``README.md``; a kill never leaves half of it."""
        temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, content in self.files().items():
            (temporary / name).write_bytes(content)
        if card is not None:
            (temporary / "README.md").write_text(card, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)


def load(
    path: Path | str,
    *,
    task_net: Factory | None = None,
    energy: Factory | None = None,
    unknown: Unknown = "missing",
) -> Model:
    """Return the model in a folder that `Model.save` or ``lossnet train`` wrote (a run's folder will do).

    A folder that is damaged or of a newer format raises a `ModelError` with the reason.  A folder holds no
    code: a model that was trained with a ``task_net`` or ``energy`` of your own needs it again, as a module,
    class or function, and takes the folder's weights.

    A value that a column of text did not have in training, or a date that cannot be read, counts as
    ``"missing"``, with a warning for each call or file that says how many there were; or is an ``"error"``.
    """
    folder = _find(path)
    with _errors_about(folder):
        kept = [CONDITIONAL] if (folder / CONDITIONAL).exists() else []
        model = _restored(_read(folder, DESCRIPTION, WEIGHTS, *kept), OwnParts(task_net, energy))
    return dataclasses.replace(model, task=model.task.treating(unknown))


def load_energy(path: Path | str, *, energy: Factory | None = None) -> Energy:
    """Return the energy of the model in a folder, in evaluation mode, whether it predicts or taught a net.

    One of your own must be given again, as to `load`.
    """
    folder = _find(path)
    with _errors_about(folder):
        kept = [ENERGY] if (folder / ENERGY).exists() else []
        files = _read(folder, DESCRIPTION, WEIGHTS, *kept)
        model = _restored(files, OwnParts(energy=energy), only="energy")
        network = model.method.get_submodule("energy")
        assert isinstance(network, Energy)
        return network.eval()


def _find(path: Path | str) -> Path:
    """Return a model folder, given itself or as a run's folder."""
    folder = Path(path)
    inner = folder / "model"
    return inner if not (folder / DESCRIPTION).is_file() and inner.is_dir() else folder


def _read(folder: Path, *names: str) -> dict[str, bytes]:
    for name in names:
        if not (folder / name).exists():
            raise ModelError(f"no model here ({folder / name} is missing)")
        if not (folder / name).is_file():  # a device or a pipe may have no end
            raise ModelError(f"{name} is not a file")
    return {name: (folder / name).read_bytes() for name in names}


@contextmanager
def _errors_about(where: Path | str) -> Iterator[None]:
    """Turn errors about a model's content into a `ModelError`."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None
    except (ValueError, KeyError, TypeError, RuntimeError, OverflowError, SafetensorError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ModelError(f"{where}: damaged model folder ({reason})") from error


def _restored(files: Mapping[str, bytes], own: OwnParts, only: str | None = None) -> Model:
    """Return the model with the networks that predict, or the one called ``only``, and no others."""
    content = _content(files[DESCRIPTION])
    settings = Settings.of({**_BEFORE, **content["settings"]})
    names = (str(content["method"]), str(content["loss"]))
    tensors = _tensors(files, WEIGHTS)
    kept = {name: value.numpy() for name, value in tensors.items() if not name.startswith("network/")}
    predicting = {name.split("/")[1].split(".")[0] for name in tensors if name.startswith("network/")}
    for part in content["own"]:
        if part not in own.names and part in {*predicting, only}:
            what = f"its {part} is of your own, and a folder holds no code"
            raise ModelError(f"{what}; give it again: lossnet.load(folder, {part}=…)")
    task = Task.from_state(content, kept, own)
    members = tuple(
        (_method_and_loss(one["names"]), Settings.of(one["settings"]))
        for one in content.get("members", ())[:_MOST_MEMBERS]
    )
    with torch.device("meta"):
        if members:
            built = [build(*own_names, own_settings, task) for own_names, own_settings in members]
            scales = [_calibration(one, built[0].space) for one in content["members"]]
            method: Method = Blend(built, scales)
        else:
            method = build(*names, settings, task)
    networks = dict(method.named_children())
    if only is not None and only not in networks:
        raise ModelError(f"{names[0]} trains without an {only}")
    for name, network in networks.items():
        if name not in (method.predictors if only is None else [only]):
            if only is not None and name in predicting:
                _fill(network.eval(), _part(f"network/{name}", tensors))  # an energy may read its encoder
            delattr(method, name)  # trained the others
        elif name in method.predictors:
            _fill(network, _part(f"network/{name}", tensors))
        elif ENERGY in files:
            _fill(network, _tensors(files, ENERGY))
        else:
            raise ModelError(f"the energy was not kept ({ENERGY} is missing)")
    for name, _ in list(method.named_buffers(recurse=False)):
        delattr(method, name)
    decision, calibration = _chosen(content, method.space)
    engine = None if only is not None else _engine_of(content, task, settings, files)
    if decision.joint and only is None and not isinstance(engine, EnergyConditional):
        raise ModelError("its confidence is by an energy that is not there")
    return Model(method, names, settings, task, decision, calibration, members, engine)


def _method_and_loss(names: Any) -> tuple[str, str]:
    """Return the names of a member's method and loss."""
    if not isinstance(names, list) or len(names) != 2:
        raise ModelError("a member of a blend needs the names of a method and a loss")
    return str(names[0]), str(names[1])


def _engine_of(
    content: Mapping[str, Any], task: Task, settings: Settings, files: Mapping[str, bytes]
) -> Conditional | None:
    """Return the engine for known parts that a folder has, if it has one."""
    name = content.get("conditional")
    if name is None:
        return None
    if name not in ENGINES:
        raise ModelError(f"unknown engine {str(name)[:40]!r}; known are {', '.join(ENGINES)}")
    if CONDITIONAL not in files:
        raise ModelError(f"the {name} for known parts was not kept ({CONDITIONAL} is missing)")
    with torch.device("meta"):
        engine = make(name, task, settings)
    _fill(engine, _tensors(files, CONDITIONAL))
    return engine.eval()


def _content(text: bytes) -> dict[str, Any]:
    """Return the content of ``model.json``, converted to the present format."""
    content = json.loads(text.decode("utf-8"))
    number = content.get("format") if isinstance(content, dict) else None
    if type(number) is not int or not 1 <= number <= FORMAT:
        advice = "; a newer version of lossnet may read it" if type(number) is int and number > FORMAT else ""
        raise ModelError(f"model format {number!r}, this version reads 1 to {FORMAT}{advice}")
    if CHECKSUMS in content:
        rest = {key: value for key, value in content.items() if key != CHECKSUMS}
        if content[CHECKSUMS][DESCRIPTION] != _digest(rest):
            raise ModelError(f"{DESCRIPTION} is corrupted (checksum mismatch)")
    elif number > 1:
        raise ModelError(f"{DESCRIPTION} has no checksums")
    current: dict[str, Any] = content if number > 2 else _of_pairs(content)
    if number < 4:  # had a threshold alone
        current = {**current, "decision": {"threshold": current["threshold"]}, "calibration": {}}
    return current


def _chosen(content: Mapping[str, Any], space: Space) -> tuple[Decision, Calibration]:
    """Return the decision and calibration of a folder; raise a ValueError for those that cannot be."""
    decision = Decision(**_fields(content, "decision"))
    _check_numbers("thresholds", (decision.threshold,), space, 1)
    _check_numbers("label thresholds", decision.label_thresholds or (0.5,), space, 1)
    _check_confidence(decision.confidence)
    return decision, _calibration(content, space)


def _calibration(content: Mapping[str, Any], space: Space) -> Calibration:
    calibration = Calibration(**_fields(content, "calibration"))
    _check_numbers("scales", calibration.scales, space, math.inf)
    return calibration


def _check_confidence(values: tuple[float, ...]) -> None:
    """Raise a ValueError for what are not the numbers of a `Confidence`."""
    if not isinstance(values, tuple) or len(values) not in (0, 3):
        raise ValueError(f"a confidence has three numbers, not {values!r}")
    if any(type(value) not in (int, float) or not math.isfinite(value) for value in values):
        raise ValueError(f"a confidence has finite numbers, not {values!r}")
    if any(value < 0 for value in values[:2]):
        raise ValueError(f"a confidence rises and falls by at least 0, not {values!r}")


def _check_numbers(name: str, values: tuple[float, ...], space: Space, most: float) -> None:
    """Raise a ValueError for what is not one number up to ``most``, or one for each label."""
    if any(type(value) not in (int, float) or not 0 <= value <= most for value in values):
        raise ValueError(f"{name} must be numbers from 0{' to 1' * (most == 1)}, not {values!r}")
    if len(values) not in ({1, space.labels} if isinstance(space, MultiLabel) else {1}):
        raise ValueError(f"{name} must be one, or one for each label, not {len(values)}")


def _fields(content: Mapping[str, Any], part: str) -> dict[str, Any]:
    values = content[part]
    if not isinstance(values, dict):
        raise ValueError(f"{part} must be a mapping, not {values!r}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _of_pairs(content: dict[str, Any]) -> dict[str, Any]:
    """Convert formats 1 and 2, in which a kind of output implied a kind of input, to format 3."""
    kind = content.get("kind", "labels")  # format 1 had, at first, labels only
    if kind == "labels":
        pair = {"kind": "features", "features": content["features"]}, {"labels": content["labels"]}
    elif kind == "tags":
        lexicon = dict(content["lexicon"])
        tags = {"tags": lexicon.pop("tags"), "scheme": lexicon.pop("scheme")}
        pair = {"kind": "words", "lexicon": lexicon, "vector_width": content["vector_width"]}, tags
    else:
        pair = {"kind": "images", "channels": content["channels"], "size": content["size"]}, {}
    return {**content, "input": pair[0], "output": {"kind": kind, **pair[1]}, "own": []}


def _tensors(files: Mapping[str, bytes], name: str) -> dict[str, Tensor]:
    """Return the tensors of a file; raise a `ModelError` if its checksum differs."""
    checksums = json.loads(files[DESCRIPTION]).get(CHECKSUMS)
    if checksums is not None and checksums[name] != _sha256(files[name]):
        raise ModelError(f"{name} is corrupted (checksum mismatch)")
    tensors = from_bytes(files[name])
    # Format 2 had nothing but the preprocessing of features beside the networks.
    return {name.replace("preprocessor/", "input/", 1): tensor for name, tensor in tensors.items()}


def _on_cpu(network: nn.Module) -> dict[str, Tensor]:
    """Return a network's tensors as safetensors wants them."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }


def _fill(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a network without memory its tensors, which must have its names, shapes and types."""
    for name, wanted in network.state_dict().items():
        if name in tensors and tensors[name].dtype != wanted.dtype:
            raise ValueError(f"{name} has numbers of type {tensors[name].dtype}, not {wanted.dtype}")
    network.load_state_dict(tensors, assign=True)


def _event(mask: Tensor | None, relaxed: Tensor) -> tuple[int, ...]:
    """Return the size of a batch's outputs, which may be shorter than those of all data."""
    if mask is None:
        return tuple(relaxed.shape[1:])
    return (*mask.shape[1:], *relaxed.shape[mask.dim() :])


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(content: Mapping[str, Any]) -> str:
    return _sha256(json.dumps(content, sort_keys=True).encode())


def _part(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of one network, by their names in it."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
