"""Every setting of a run, and the recipes that fill them in."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import yaml

from lossnet.methods.implicit import Through

__all__ = [
    "RecipeError",
    "Settings",
    "checked",
    "default_recipe",
    "find_recipe",
    "read_recipe",
    "recipe_names",
    "recipe_names_of",
    "recipe_settings",
]


#: what a recipe may say beside settings
NAMES = ("method", "loss")
_POSITIVE = {
    *("task_layers", "task_hidden", "energy_layers", "energy_hidden", "global_hidden"),
    *("image_width", "image_enlarge"),
    *("batch_size", "epochs", "patience", "samples", "inference_candidates", "clip", "noise_scale"),
    *("energy_lr", "task_lr", "energy_steps", "task_steps", "solver_terms"),
}
_NOT_NEGATIVE = {
    *("weight_decay", "perturb_std", "inference_steps", "plateau_patience", "implicit_cap", "implicit_every"),
    *("crop", "warp", "colour", "perceptron_weight", "word_model_weight"),
}
_FRACTIONS = {"task_dropout", "energy_dropout", "plateau_factor"}
_CHANCES = {"patches"}
#: Settings that cost time and memory of themselves: a stranger's model folder must not ask for any number.
_AT_MOST = {
    "task_layers": 100,
    "energy_layers": 100,
    "image_enlarge": 8,
    "inference_steps": 10_000,
    "inference_candidates": 1000,
}


class RecipeError(ValueError):
    """A recipe that cannot be used, and why."""


@dataclass(frozen=True)
class Settings:
    """What a run can vary, beside its data, method, loss and seed.

    Args:
        energy_weight: λ_E, the weight of the energy in the task loss.
        ce_weight: λ_CE, the weight of cross-entropy (or another fixed loss) in the task loss.
        score_weight: λ_S, the weight of the soft score's cost in the task loss.
        samples: candidates that a contrastive loss or regression-s draws for each instance.
        perturb_std: standard deviation of regression-s's noise on the logits.
        energy_steps: energy steps on each batch, n_E.
        task_steps: task-net steps on each batch, n_T.
        implicit_weight: μ, the weight of the implicit term in the energy's gradient.
        implicit_cap: largest norm of the implicit term, in norms of the explicit one; 0 for no cap.
        implicit_every: the implicit term is part of each so-many-th energy step on a batch; 0 for the last.
        implicit_through: where the task net enters the primary loss: the cost of its prediction alone,
            the candidates, or everything, the literal reading of the paper.
        solver: what stands for the inverse Hessian in the implicit term.
        solver_terms: Hessian products of the solver.
        cost_net: how InfNet+'s cost-augmented network hangs together with the task net: it changes the task
            net's output, shares its features, or is a network of its own.
        perceptron_weight: λ, the weight of the task net's part in InfNet+'s game.
        zero_truncation: whether the networks of InfNet and InfNet+ see their objective truncated at zero too.
        energy_lr: learning rate of the energy.
        task_lr: learning rate of the task net.
        weight_decay: AdamW's weight decay.
        task_layers: hidden layers of the task net.
        task_hidden: width of the task net's layers.
        task_dropout: dropout in the task net.
        energy_layers: hidden layers of the energy's feature network.
        energy_hidden: width of those layers.
        energy_dropout: dropout in the energy's feature network.
        global_hidden: hidden units of the label interaction.
        conditioned: whether the label interaction sees the input.
        tag_models: language models of tags in the energy: none, forward (the paper's GE(a)), both directions
            (b), or both without and with words (c).
        word_model_weight: γ, the weight of those with words.
        features: what is known of tokens beside the word: a name that the data set has for a list of them, or
            a list, separated by commas; the data set's first by default.
        tune_embeddings: whether training changes pretrained word vectors.
        image_net: network for images: the papers' fully convolutional one, or a small U-Net.
        image_energy: the network of the energy: the same kind, or another one than the task net.
        image_width: channels of the U-Net at full resolution; half of the papers' network's.
        image_enlarge: how many times larger than images are the U-Net sees them.
        crop: side of the square crops that training and prediction see of images; 0 for whole images.
        flips: whether images are also seen mirrored, in training and prediction.
        warp: how far training turns (radians) and stretches (natural log) images at random.
        colour: how far training changes brightness, contrast and tint of images at random.
        patches: the chance that a training image shows a rectangle of another one.
        noise: how samples and perturbations of masks hang together: each pixel alone, in blocks, or smoothly.
        noise_scale: side of the blocks, or range of the smooth noise, in pixels.
        inference_steps: steps of gradient-based inference.
        inference_lr: its step size.
        inference_update: mirror descent in the logits, or projected gradient in the output.
        inference_optimizer: what its gradients go through.
        inference_start: where it starts.
        inference_candidates: starting points for each instance.
        batch_size: instances in a batch.
        epochs: at most so many epochs in each stage.
        patience: epochs without improvement before a stage ends.
        clip: largest gradient norm of each network.
        plateau_patience: epochs without improvement before learning rates are cut.
        plateau_factor: what they are multiplied by then.
    """

    energy_weight: float = 1.0
    ce_weight: float = 1.0
    score_weight: float = 0.0
    samples: int = 20
    perturb_std: float = 1.0
    energy_steps: int = 1
    task_steps: int = 1
    implicit_weight: float = 1000.0
    implicit_cap: float = 5.0
    implicit_every: int = 0
    implicit_through: Through = "cost"
    solver: Literal["identity", "neumann", "conjugate-gradient", "diagonal", "rank-one"] = "identity"
    solver_terms: int = 5
    cost_net: Literal["stacked", "shared", "separated"] = "stacked"
    perceptron_weight: float = 1.0
    zero_truncation: bool = False
    energy_lr: float = 1e-3
    task_lr: float = 1e-3
    weight_decay: float = 1e-5
    task_layers: int = 2
    task_hidden: int = 400
    task_dropout: float = 0.2
    energy_layers: int = 2
    energy_hidden: int = 400
    energy_dropout: float = 0.2
    global_hidden: int = 200
    conditioned: bool = False
    tag_models: Literal["none", "forward", "both", "words"] = "none"
    word_model_weight: float = 1.0
    features: str = ""
    tune_embeddings: bool = False
    image_net: Literal["fcn", "unet"] = "fcn"
    image_energy: Literal["same", "fcn", "unet"] = "same"
    image_width: int = 32
    image_enlarge: int = 1
    crop: int = 0
    flips: bool = False
    warp: float = 0.0
    colour: float = 0.0
    patches: float = 0.0
    noise: Literal["pixels", "blocks", "smooth"] = "pixels"
    noise_scale: float = 2.0
    inference_steps: int = 20
    inference_lr: float = 0.1
    inference_update: Literal["mirror", "gradient"] = "mirror"
    inference_optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    inference_start: Literal["zeros", "noise", "net"] = "zeros"
    inference_candidates: int = 1
    batch_size: int = 32
    epochs: int = 100
    patience: int = 20
    clip: float = 10.0
    plateau_patience: int = 5
    plateau_factor: float = 0.5

    def __post_init__(self) -> None:
        for name in _types():
            _check(name, getattr(self, name))
        if self.implicit_every > self.energy_steps:
            steps = f"energy_steps={self.energy_steps}"
            raise ValueError(f"implicit_every must be at most {steps}, not {self.implicit_every}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from values that somebody wrote: unknown names and values of another type are refused.

        >>> Settings.of({"epochs": "many"})
        Traceback (most recent call last):
        ValueError: epochs cannot be 'many'
        """
        return cls(**checked(values))


def recipe_folder() -> Path:
    """Where recipes are: beside the sources in a checkout, inside the package when installed."""
    checkout = Path(__file__).parents[2] / "recipes"
    return checkout if checkout.is_dir() else Path(str(resources.files("lossnet") / "recipes"))


def recipe_names() -> list[str]:
    """The recipes at hand, without their extension.

    >>> "bibtex-seal-nce" in recipe_names()
    True
    """
    return sorted(path.stem for path in recipe_folder().glob("*.yaml"))


def default_recipe(dataset: str, method: str, loss: str | None) -> Path | None:
    """The recipe of a data set for a method and loss, if it has one.

    >>> default_recipe("bibtex", "seal", "nce").name
    'bibtex-seal-nce.yaml'
    >>> default_recipe("mine.csv", "seal", "nce") is None
    True
    """
    for stem in (f"{dataset}-{method}-{loss}", f"{dataset}-{method}"):
        path = recipe_folder() / f"{stem}.yaml"
        if path.is_file() and Path(dataset).name == dataset:
            return path
    return None


def find_recipe(name: str) -> Path:
    """A recipe by its name or path."""
    for path in (Path(name), recipe_folder() / name, recipe_folder() / f"{name}.yaml"):
        if path.is_file():
            return path
    raise RecipeError(f"no recipe {name!r}: give a YAML file, or one of {', '.join(recipe_names())}")


def recipe_settings(dataset: str, method: str, loss: str, recipe: str | None = None) -> dict[str, Any]:
    """Settings of the recipe asked for, else of the data set's own, else none.

    >>> recipe_settings("bibtex", "seal", "nce")["energy_steps"]
    12
    >>> recipe_settings("mine.csv", "seal", "nce")
    {}
    """
    path = find_recipe(recipe) if recipe else default_recipe(dataset, method, loss)
    read = {} if path is None else read_recipe(path)
    return {name: value for name, value in read.items() if name not in NAMES}


def recipe_names_of(recipe: str) -> dict[str, str]:
    """The method and loss that a recipe is for.

    >>> recipe_names_of("bibtex-seal-nce")
    {'method': 'seal', 'loss': 'nce'}
    """
    read = read_recipe(find_recipe(recipe))
    return {name: read[name] for name in NAMES if name in read}


def read_recipe(path: Path) -> dict[str, Any]:
    """The settings in a YAML file, checked against `Settings`, and the names of its method and loss.

    >>> read_recipe(find_recipe("bibtex-seal-nce"))["samples"]
    20
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # dates and numbers give ValueErrors
        raise RecipeError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: expected 'setting: value' lines, found {type(content).__name__}")
    try:
        return checked({name: value for name, value in content.items() if name not in NAMES}) | {
            name: _of_type(name, content[name], str) for name in NAMES if name in content
        }
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from error


@cache
def _types() -> dict[str, Any]:
    """The type of each setting; to find them out takes longer than to check them."""
    return get_type_hints(Settings)


def checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that somebody wrote, each as its type has it; whether they go together is not looked at.

    >>> checked({"task_lr": "1e-3", "implicit_every": 4})
    {'task_lr': 0.001, 'implicit_every': 4}
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"settings must have names, not be a {type(values).__name__}")
    types = _types()
    for name in values:
        if name not in types:
            known = ", ".join(field.name for field in dataclasses.fields(Settings))
            raise ValueError(f"unknown setting {reprlib.repr(name)}; known are {known}")
    found = {name: _of_type(name, value, types[name]) for name, value in values.items()}
    for name, value in found.items():
        _check(name, value)
    return found


def _check(name: str, value: Any) -> None:
    """Refuses what a setting cannot be, whatever the others are."""
    choices = get_args(_types()[name])
    if choices and value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    if name in _POSITIVE and not value > 0:
        raise ValueError(f"{name} must be above 0, not {value}")
    if name in _FRACTIONS and not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, not {value}")
    if name in _CHANCES and not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, not {value}")
    if name in _NOT_NEGATIVE and not value >= 0:
        raise ValueError(f"{name} must not be negative, not {value}")
    if name in _AT_MOST and value > _AT_MOST[name]:
        raise ValueError(f"{name} must be at most {_AT_MOST[name]}, not {value}")


def _of_type(name: str, value: Any, kind: Any) -> Any:
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 reads 1e-05 as a string
        except (ValueError, OverflowError):
            pass
    elif (kind in (int, bool, str) and type(value) is kind) or value in getattr(kind, "__args__", ()):
        return value
    raise ValueError(f"{name} cannot be {reprlib.repr(value)}")
