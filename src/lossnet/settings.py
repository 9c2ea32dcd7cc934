"""Every setting of a run: its group, default, bounds and help.

Nothing here imports torch, so that the command line's help is fast.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal, get_args, get_type_hints

from lossnet.suggest import did_you_mean

__all__ = ["GROUPS", "Setting", "Settings", "all_settings", "changed", "checked", "from_text"]

#: the groups of settings, in order, and what each is about
GROUPS = {
    "training": "optimizers, batches and stopping",
    "network": "the task net",
    "energy": "the energy network",
    "method": "what a method weighs, draws and counts",
    "inference": "gradient-based inference",
    "images": "networks, views and noise of images",
    "words": "what is known of tokens",
}


@dataclass(frozen=True)
class Setting:
    """A setting as it stands in `Settings`; its type is a builtin one or a ``Literal`` of words.

    ``bounds`` say what it must be, such as ``">= 0, < 1"``; ``search`` is ``(low, high)``, where a search
    looks for it unless told otherwise; runs that differ in ``stackable`` settings can be trained together.
    """

    name: str
    type: Any
    default: Any
    group: str
    help: str
    bounds: str = ""
    search: tuple[float, float] | None = None
    stackable: bool = False

    def check(self, value: Any) -> None:
        """Raise a ValueError for a value that this setting cannot have, whatever the others are."""
        choices = get_args(self.type)
        if choices and value not in choices:
            raise ValueError(f"{self.name} cannot be {value!r}; {did_you_mean(value, choices)}")
        conditions = [bound.split() for bound in self.bounds.split(",") if bound]
        if not all(_SIGNS[sign][1](value, float(bound)) for sign, bound in conditions):  # NaN is never within
            wanted = " and ".join(f"{_SIGNS[sign][0]} {bound}" for sign, bound in conditions)
            raise ValueError(f"{self.name} must be {wanted}, not {value}")


_SIGNS = {
    ">": ("above", operator.gt),
    ">=": ("at least", operator.ge),
    "<": ("below", operator.lt),
    "<=": ("at most", operator.le),
}


def _setting(group: str, default: Any, help: str, bounds: str = "", **about: Any) -> Any:
    """Return a field of `Settings`; the arguments are `Setting`'s."""
    return field(default=default, metadata={"group": group, "help": help, "bounds": bounds, **about})


_training, _network, _energy, _method, _inference, _images, _words = (
    partial(_setting, group) for group in GROUPS
)


@dataclass(frozen=True)
class Settings:
    """Settings of a run, beside its data, method, loss and seed."""

    task_lr: float = _training(
        1e-3, "learning rate of the task net", "> 0", search=(1e-4, 1e-2), stackable=True
    )
    energy_lr: float = _training(
        1e-3, "learning rate of the energy", "> 0", search=(1e-5, 1e-2), stackable=True
    )
    weight_decay: float = _training(1e-5, "AdamW's weight decay", ">= 0", search=(1e-6, 1e-1), stackable=True)
    batch_size: int = _training(0, "instances in a batch; 0 for 32, or fewer of a small set", ">= 0")
    epochs: int = _training(100, "largest number of epochs in each stage", "> 0", stackable=True)
    patience: int = _training(20, "epochs without improvement before a stage ends", "> 0", stackable=True)
    patience_steps: int = _training(
        200, "steps without improvement before a stage ends, at least", ">= 0", stackable=True
    )
    clip: float = _training(10.0, "largest gradient norm of each network", "> 0", stackable=True)
    plateau_patience: int = _training(
        5, "epochs without improvement before learning rates are cut", ">= 0", stackable=True
    )
    plateau_factor: float = _training(
        0.5, "what learning rates are multiplied by then", ">= 0, < 1", stackable=True
    )
    warm_up: int = _training(
        0, "batches of each stage in which learning rates grow to what they are", ">= 0", stackable=True
    )
    lr_decay: Literal["plateau", "linear"] = _training(
        "plateau",
        "how learning rates fall: cut where validation stops to improve, or evenly, to 0 after all epochs",
        stackable=True,
    )
    energy_limits: bool = _training(
        True, "whether clipping and rate cuts are also for an energy that is trained beside a task net"
    )

    task_layers: int = _network(2, "hidden layers of the task net", "> 0, <= 100")
    task_hidden: int = _network(400, "width of the task net's layers", "> 0")
    task_dropout: float = _network(0.2, "dropout in the task net", ">= 0, < 1", search=(0.0, 0.6))
    last_layer_dropout: bool = _network(
        True, "whether dropout also follows the last hidden layer, of the energy too (features only)"
    )
    output_bias: bool = _network(True, "whether the task net's output layer has a bias (features only)")

    energy_layers: int = _energy(2, "hidden layers of the energy's feature network", "> 0, <= 100")
    energy_hidden: int = _energy(400, "width of the energy's layers", "> 0")
    energy_dropout: float = _energy(
        0.2, "dropout in the energy's feature network", ">= 0, < 1", search=(0.0, 0.6)
    )
    global_hidden: int = _energy(200, "hidden units of the label interaction", "> 0")
    global_bias: bool = _energy(False, "whether the label interaction's first layer has a bias")
    conditioned: bool = _energy(False, "whether the label interaction sees the input")
    tag_models: Literal["none", "forward", "both", "words", "attention"] = _energy(
        "none",
        "what in the energy sees more than neighbours: none, language models of tags, forward (the paper's "
        "GE(a)), in both directions (b), or both without and with words (c), or self-attention",
    )
    word_model_weight: float = _energy(1.0, "γ, the weight of those with words", ">= 0")

    energy_weight: float = _method(
        1.0, "λ_E, the weight of the energy in the task loss", search=(1e-3, 10.0), stackable=True
    )
    ce_weight: float = _method(
        1.0, "λ_CE, the weight of cross-entropy (or another fixed loss) in the task loss", stackable=True
    )
    score_weight: float = _method(
        0.0, "λ_S, the weight of the soft score's cost in the task loss", stackable=True
    )
    energy_steps: int = _method(1, "energy steps on each batch, n_E", "> 0", search=(1, 12))
    task_steps: int = _method(1, "task-net steps on each batch, n_T", "> 0", search=(1, 8))
    schedule: Literal["nested", "grouped"] = _method(
        "nested",
        "how SEAL and InfNet+ take several steps on a batch: nested, all energy steps before each task step "
        "(of InfNet+, all steps of the networks before each energy step), every step with predictions, "
        "samples and dropout of its own; or grouped, the energy's and then the task net's, which is faster",
    )
    samples: int = _method(
        20,
        "candidates that a contrastive loss draws, or that regression-s compares, the prediction among them",
        "> 0",
        search=(5, 80),
    )
    perturb_std: float = _method(
        1.0, "deviation of regression-s's noise on the logits", ">= 0", search=(0.1, 3.0)
    )
    regression_term: Literal["score", "energy"] = _method(
        "score",
        "what a task net descends of an energy trained by regression: −σ(−E), the score that it predicts "
        "with its sign turned, or the energy itself",
    )
    margin_cost: Literal["score", "manhattan"] = _method(
        "score",
        "what a margin grows with: the cost of the score, or the Manhattan distance to the truth",
    )
    implicit_weight: float = _method(
        300.0,
        "μ, the weight of the implicit term in the energy's gradient",
        search=(1.0, 1e4),
        stackable=True,
    )
    implicit_cap: float = _method(
        20.0,
        "largest norm of the implicit term, in norms of the explicit one; 0 for no cap",
        ">= 0",
        search=(0.5, 100.0),
    )
    implicit_every: int = _method(
        0, "the implicit term is part of every n-th energy step; 0 for the last one", ">= 0"
    )
    implicit_through: Literal["cost", "prediction", "everything"] = _method(
        "cost",
        "where the task net enters the primary loss: the cost of its prediction alone, the candidates, or "
        "everything, the literal reading of the paper",
    )
    solver: Literal["identity", "neumann", "conjugate-gradient", "diagonal", "rank-one"] = _method(
        "identity", "what stands for the inverse Hessian in the implicit term"
    )
    solver_terms: int = _method(5, "Hessian products of the solver", "> 0")
    cost_net: Literal["stacked", "shared", "separated"] = _method(
        "stacked",
        "how InfNet+'s cost-augmented network is parameterised: it changes the task net's output, shares its "
        "features, or is a network of its own",
    )
    perceptron_weight: float = _method(
        1.0, "λ, the weight of the task net in InfNet+'s game", ">= 0", search=(0.1, 10.0)
    )
    zero_truncation: bool = _method(
        False, "whether InfNet's and InfNet+'s networks see their objective truncated at zero too"
    )

    unlabelled_weight: float = _method(
        1.0, "λ, the weight of instances without labels, once it is reached", ">= 0", search=(0.1, 10.0)
    )
    ramp_up: int = _method(200, "steps in which that weight grows from 0", ">= 0", search=(0, 1000))
    teacher_decay: float = _method(
        0.99, "of the teacher, an exponential average of the task net", ">= 0, < 1", search=(0.9, 0.999)
    )
    teacher_power: float = _method(
        1.0,
        "α, the power of the teacher's probabilities in what rules make of them",
        ">= 0, <= 1",
        search=(0.1, 1.0),
    )
    correction: float = _method(
        0.5, "η, how far an energy moves the teacher's logits", ">= 0", search=(0.1, 2.0)
    )
    reward_scale: float = _method(
        5.0, "the penalty, in nats, at which a reward has fallen to 1/e", "> 0", search=(1.0, 20.0)
    )
    input_noise: float = _method(
        0.05,
        "deviation of Gaussian noise on the inputs that a teacher's student sees",
        ">= 0",
        search=(0.0, 0.3),
    )

    conditional: Literal["none", "network", "energy", "auto"] = _method(
        "none",
        "what predicts once a part of an output is known: a network that reads it, an energy of label sets "
        "with what is known clamped, or auto, the better one on validation data",
    )

    inference_lr: float = _inference(0.1, "step size of gradient-based inference", search=(5e-3, 5.0))
    inference_steps: int = _inference(
        20, "steps of gradient-based inference", ">= 0, <= 10000", search=(5, 50)
    )
    inference_update: Literal["mirror", "gradient"] = _inference(
        "mirror", "mirror descent in the logits, or projected gradient in the output"
    )
    inference_optimizer: Literal["sgd", "momentum", "adam"] = _inference(
        "sgd", "what the gradients of inference go through"
    )
    inference_start: Literal["zeros", "noise", "uniform", "net", "task-net"] = _inference(
        "zeros",
        "where inference starts: zeros, noise in the logits, uniform outputs, net (the energy's local term), "
        "or task-net, a network that is first trained with cross-entropy (spen, nce-energy)",
    )
    inference_candidates: int = _inference(1, "starting points for each instance", "> 0, <= 1000")

    image_net: Literal["fcn", "unet"] = _images(
        "fcn", "network for images: the papers' fully convolutional one, or a small U-Net"
    )
    image_energy: Literal["same", "fcn", "unet"] = _images(
        "same", "the network of the energy: the same kind, or another one than the task net"
    )
    image_width: int = _images(
        32, "channels of the U-Net at full resolution; half of the papers' network's", "> 0"
    )
    image_enlarge: int = _images(1, "how many times larger than images are the U-Net sees them", "> 0, <= 8")
    crop: int = _images(0, "side of the square crops that networks see of images; 0 for whole images", ">= 0")
    flips: bool = _images(False, "whether images are also seen mirrored, in training and prediction")
    warp: float = _images(
        0.0, "how far training turns (radians) and stretches (log) images at random", ">= 0"
    )
    colour: float = _images(0.0, "how far training changes brightness, contrast and tint at random", ">= 0")
    patches: float = _images(
        0.0, "the chance that a training image shows a rectangle of another one", ">= 0, <= 1"
    )
    noise: Literal["pixels", "blocks", "smooth"] = _images(
        "pixels", "how samples of masks are correlated: each pixel alone, in blocks, or smoothly"
    )
    noise_scale: float = _images(2.0, "side of the blocks, or range of the smooth noise, in pixels", "> 0")

    features: str = _words(
        "",
        "what is known of tokens beside the word: a name that the data set has for a list of them, or a "
        "list, separated by commas; the data set's first by default",
    )
    tune_embeddings: bool = _words(False, "whether training changes pretrained word vectors")
    energy_words: bool = _words(
        True, "whether an energy sees words, or only what is known of tokens beside them"
    )
    word_dropout: float = _words(
        0.0, "the chance that training sees what is known of a token, but not its word", ">= 0, < 1"
    )

    def __post_init__(self) -> None:
        for name, about in all_settings().items():
            about.check(getattr(self, name))
        if self.implicit_every > self.energy_steps:
            steps = f"energy_steps={self.energy_steps}"
            raise ValueError(f"implicit_every must be at most {steps}, not {self.implicit_every}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Return settings from values that a user wrote; unknown names and wrong types are errors.

        >>> Settings.of({"epochs": "many"})
        Traceback (most recent call last):
        ValueError: epochs cannot be 'many'; give a whole number
        """
        return cls(**checked(values))


@cache
def all_settings() -> dict[str, Setting]:
    """Return all settings by name, in order.

    >>> all_settings()["task_lr"].help
    'learning rate of the task net'
    """
    types = get_type_hints(Settings)
    return {
        one.name: Setting(one.name, types[one.name], one.default, **one.metadata)
        for one in dataclasses.fields(Settings)
    }


def checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that a user wrote, converted to their types; combinations are not checked.

    >>> checked({"task_lr": "1e-3", "implicit_every": 4})
    {'task_lr': 0.001, 'implicit_every': 4}
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"settings must have names, not be a {type(values).__name__}")
    known = all_settings()
    for name in values:
        if name not in known:
            what = f"unknown setting {reprlib.repr(name)}"
            raise ValueError(f"{what}; {did_you_mean(name, known, 'known are')}")
    typed = {name: of_type(name, value, known[name].type) for name, value in values.items()}
    for name, value in typed.items():
        known[name].check(value)
    return typed


def changed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a run's settings that are not as they are by default.

    >>> changed({"epochs": 7, "clip": Settings().clip})
    {'epochs': 7}
    """
    defaults = {name: one.default for name, one in all_settings().items()}
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


_WANTED = {int: "give a whole number", float: "give a number", bool: "give true or false"}


def of_type(name: str, value: Any, kind: Any) -> Any:
    """Return a value converted to a type, or raise a ValueError with the setting's name."""
    if kind is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 reads 1e-05 as a string
        except (ValueError, OverflowError):
            pass
    elif (kind in (int, bool, str) and type(value) is kind) or value in getattr(kind, "__args__", ()):
        return value
    what = f"{name} cannot be {reprlib.repr(value)}"
    if choices := getattr(kind, "__args__", ()):
        raise ValueError(f"{what}; {did_you_mean(value, choices)}")
    raise ValueError(f"{what}; {_WANTED[kind]}" if kind in _WANTED else what)


def from_text(name: str, text: str) -> Any:
    """Return the value of a setting that is written on a command line.

    >>> from_text("epochs", "3"), from_text("flips", "yes"), from_text("solver", "neumann")
    (3, True, 'neumann')
    """
    kind = all_settings()[name].type if name in all_settings() else None
    value: Any = text.strip()
    if kind is bool:
        value = {"true": True, "yes": True, "false": False, "no": False}.get(value.lower(), value)
    elif kind is int:
        with suppress(ValueError):  # `checked` complains, with the setting's name
            value = int(value)
    return checked({name: value})[name]


def values_from_text(name: str, text: str) -> list[Any]:
    """Return the values of a setting from a list such as ``1,2,3``, in which none may be repeated."""
    values = [from_text(name, part) for part in text.split(",")]
    if len(set(values)) < len(values):
        raise ValueError("a value is given twice")
    return values


_ARGUMENTS = "".join(f"        {one.name}: {one.help}.\n" for one in all_settings().values())
Settings.__doc__ = f"{Settings.__doc__}\n\n    Args:\n{_ARGUMENTS}    "
