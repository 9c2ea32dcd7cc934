"""Methods by name: the one place where names are looked up."""

from __future__ import annotations

from torch import nn

from lossnet.methods import SPECS, Method, MethodSpec, Parts
from lossnet.settings import Settings
from lossnet.spaces import Space
from lossnet.suggest import did_you_mean
from lossnet.task import Task

__all__ = [
    "AUTO",
    "METHODS",
    "build",
    "check_names",
    "default_loss",
    "default_method",
    "names_title",
    "suits",
]

#: the methods by the names that they have on the command line
METHODS: dict[str, MethodSpec] = {spec.name: spec for spec in SPECS}
#: no method but the choice of one by validation data, see `lossnet.auto`
AUTO = "auto"


def default_method(loss: str | None = None, rules: bool = False, energy: bool = False) -> str:
    """Return the method where none is named: ``auto``, unless what is given is for one method.

    Rules are for ``rules``, an energy of your own for ``seal``, a loss for the simplest method that has it.

    >>> default_method(), default_method("soft-f1"), default_method("margin"), default_method(rules=True)
    ('auto', 'cross-entropy', 'seal', 'rules')
    """
    if rules or energy:
        return "rules" if rules else "seal"
    suitable = [name for name in ("cross-entropy", "seal", *METHODS) if loss in METHODS[name].losses]
    return suitable[0] if suitable else AUTO


def default_loss(method: str) -> str:
    """Return the loss that a method uses unless told.

    >>> default_loss("seal")
    'nce'
    """
    if method == AUTO:
        return "none"
    if method not in METHODS:
        raise ValueError(f"no method {method!r}; {did_you_mean(method, [AUTO, *METHODS])}")
    return METHODS[method].default_loss


def check_names(method: str, loss: str) -> None:
    """Raise a ValueError for an unknown method, or a loss that the method does not take."""
    own = default_loss(method)
    losses = [own] if method == AUTO else list(METHODS[method].losses)
    if method == AUTO and loss != own:
        every = sorted({name for spec in METHODS.values() for name in spec.losses})
        what = f"method {method} chooses its loss, and none is called {loss!r}"
        raise ValueError(f"{what}; {did_you_mean(loss, every)}")
    if loss not in losses:
        what = f"method {method} has no loss {loss!r}; {did_you_mean(loss, losses, 'it takes')}"
        others = [name for name, spec in METHODS.items() if loss in spec.losses]
        raise ValueError(f"{what}; {loss} is for {', '.join(others)}" if others else what)


def names_title(method: str, loss: str) -> str:
    """Return a method and its loss as titles name them.

    >>> names_title("seal", "nce"), names_title("auto", "none")
    ('seal (nce)', 'auto')
    """
    return method if loss in ("none", "") else f"{method} ({loss})"


def suits(method: str, loss: str, space: Space) -> bool:
    """Whether a method and loss are applicable to outputs of a space.

    >>> from lossnet.spaces import MultiLabel, Tags
    >>> suits("crf", "likelihood", MultiLabel(3)), suits("cross-entropy", "dice", Tags(3))
    (False, False)
    """
    return METHODS[method].suits(loss, space)


def build(method: str, loss: str, settings: Settings, task: Task) -> Method:
    """Return a method for a task.

    >>> type(build("seal", "nce", Settings(), Task.of_sizes(inputs=4, labels=3))).__name__
    'SEAL'
    """
    check_names(method, loss)
    if method == AUTO:
        raise ValueError("auto chooses among methods and has no network; name one of them, as cross-entropy")
    spec = METHODS[method]
    parts = Parts(spec, loss, settings, task)
    if not spec.suits(loss, parts.space):
        suitable = [
            one.name for one in METHODS.values() if any(one.suits(name, parts.space) for name in one.losses)
        ]
        others = f"its methods are {', '.join(suitable)}"
        if method in suitable:
            own = (name for name in spec.losses if spec.suits(name, parts.space))
            others = f"with those, {method} takes {', '.join(own)}"
        raise ValueError(f"method {method} with loss {loss} is not for {task.output.kind}; {others}")
    if task.own.rules and not spec.rules:
        able = ", ".join(name for name, one in METHODS.items() if one.rules)
        raise ValueError(f"method {method} does not learn from rules; leave them out, or name one of {able}")
    built = spec.build(parts)
    if task.own.energy is not None:
        _check_energy(spec, dict(built.named_children()).get("energy"))
    return built


def _check_energy(spec: MethodSpec, energy: nn.Module | None) -> None:
    """Raise a ValueError for a custom energy that a method cannot use."""
    if energy is None:
        raise ValueError(f"method {spec.name} has no energy; leave energy= out, or use method seal")
    if not spec.frozen_energy and not any(one.requires_grad for one in energy.parameters()):
        what = f"method {spec.name} trains the energy, and this one is frozen or has no parameters"
        raise ValueError(f"{what}; use method seal, which then trains the task net alone")
