"""Custom networks and energies, in place of those that a task would make."""

from __future__ import annotations

import copy
import inspect
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from torch import nn

from lossnet.data.readers.text import missing_file
from lossnet.energies import Energy, Rule, Scorer
from lossnet.energies.rules import check_rules

if TYPE_CHECKING:
    from lossnet.task import Task

__all__ = ["Factory", "OwnParts", "read_rules"]

#: a module, which is copied; or a class or function that makes one, see `OwnParts`
Factory = nn.Module | Callable[..., nn.Module]


@dataclass(frozen=True, eq=False)
class OwnParts:
    """A task net and an energy of your own, each a module, a class, or a function that returns a module.

    A module is copied, so that every run starts from it.  A class or function that needs two arguments is
    called with the numbers of inputs and of logits, as `torch.nn.Linear` is; one that needs a single argument
    is called with the `Task`; others without any.  An energy may be any module that maps inputs and
    candidates ``(batch, K, *event)`` to energies ``(batch, K)``.

    Args:
        task_net: maps inputs to logits.
        energy: scores outputs.
        frozen: whether the energy, pretrained elsewhere, is not trained.
        rules: what is known of outputs, for method ``rules``; they are not part of the model.

    >>> from lossnet.task import Task
    >>> OwnParts(task_net=nn.Linear).make_task_net(Task.of_sizes(inputs=4, labels=3))
    Linear(in_features=4, out_features=3, bias=True)
    """

    task_net: Factory | None = None
    energy: Factory | None = None
    frozen: bool = False
    rules: Sequence[Rule] = ()

    def __post_init__(self) -> None:
        for name in ("task_net", "energy"):
            part = getattr(self, name)
            if part is not None and not callable(part):
                what = f"{name} is {part!r}; give a torch.nn.Module"
                raise TypeError(f"{what}, a class of modules, or a function that returns one")
        check_rules(self.rules)
        if self.frozen and self.energy is None:
            raise ValueError("a frozen energy must be given: energy=…")

    @property
    def names(self) -> list[str]:
        """The names of the parts that are given."""
        return [name for name in ("task_net", "energy") if getattr(self, name) is not None]

    def make_task_net(self, task: Task) -> nn.Module:
        return _make(self.task_net, task, "task_net")

    def make_energy(self, task: Task) -> Energy:
        energy = _make(self.energy, task, "energy")
        if not isinstance(energy, Energy):
            energy = Scorer(energy)
        return energy.requires_grad_(False) if self.frozen else energy


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Run a file of Python and return the rules that it defines, in their order.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "rules.py")
    ...     _ = path.write_text("from lossnet.energies import exactly\\npair = exactly(2)")
    ...     read_rules(path)
    (Rule(exactly(2), weight=inf),)
    """
    if not path.exists():
        raise missing_file(path)
    try:
        names = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        at = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
        where = f" (line {at[-1]})" if at else ""
        raise ValueError(f"{path} cannot be run: {type(error).__name__}: {error}{where}") from error
    lists = (value if isinstance(value, list | tuple) else [value] for value in names.values())
    rules = dict.fromkeys(one for values in lists for one in values if isinstance(one, Rule))
    if not rules:
        raise ValueError(f"{path} has no rules; decorate functions with lossnet.rule, or call exactly(2)")
    return tuple(rules)


def _make(factory: Any, task: Task, name: str) -> nn.Module:
    if isinstance(factory, nn.Module):
        return copy.deepcopy(factory)
    required = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    sizes = (task.input.width, task.output.logits) if len(required) > 1 else ()
    module = factory(task) if len(required) == 1 else factory(*sizes)
    if not isinstance(module, nn.Module):
        raise TypeError(f"{name} made {type(module).__name__}, not a torch.nn.Module")
    return module
