"""Labels that are known when predicting, whole sets, and planted errors.

For each data set and seed a network is trained with cross-entropy: of the two that `auto` compares, the one
that validation data choose.  Beside it is trained what answers once a part of an output is known: a network
that reads it, the residual energy, and an ensemble of five classifier chains.  Test instances then have each
of their true labels known with some chance, or each label, true or not; of completed digits, whole rows of
pixels.  What is predicted of the rest is compared.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.grid import carried_out, finished, markdown, show
from lossnet.conditional import EnergyConditional
from lossnet.data import Dataset, LabelTable
from lossnet.decoding import ExpectedF1, tune_threshold
from lossnet.loading import Loaded
from lossnet.methods import CrossEntropy
from lossnet.model import Model
from lossnet.nets import MLP
from lossnet.run import Fitted, Run, find_device, fit, read, versions, with_conditional
from lossnet.runs import spread
from lossnet.scores import LOG_LOSS
from lossnet.settings import Settings
from lossnet.spaces import Batch
from lossnet.training import Trainer

__all__ = ["SETS", "SHARES", "exact_table", "known_table", "planted_table", "run"]

SETS = ("cal500", "genbase", "digits-pairs", "digits-completion", "expr_fun", "bibtex", "delicious")
#: small sets have two seeds more
SMALL = SETS[:5]
SHARES = (0.0, 0.2, 0.5, 0.8)
IGNORING, NETWORK, ENERGY, CHAINS = "ignoring it", "network", "energy", "classifier chains"
PLANTED = ("digits-pairs", "genbase", "expr_fun", "bibtex")
_CHAINS = 5
_FLIPPED = 0.05


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all sets; writes ``results.jsonl`` and ``table.md``."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    results = finished(store)
    done = {(one["dataset"], one["seed"], one["kind"]) for one in results}
    cases: list[tuple[Callable[..., list[dict[str, Any]]], str, str, int]] = []
    for seed in range(seeds + 2):
        for name in SETS if seed < seeds else SMALL:
            cases.append((_work, "known", name, seed))
            cases.append((_whole, "whole", name, seed))
            if name in PLANTED and seed < seeds:
                cases.append((_plant, "planted", name, seed))
    tasks = [
        partial(work, name, seed, data_dir, device)
        for work, kind, name, seed in cases
        if (name, seed, kind) not in done
    ]
    results += carried_out(tasks, store, jobs, lambda one: f"{one['dataset']}, seed {one['seed']}")
    tables = {"known": known_table, "exact": exact_table, "planted": planted_table}
    written = []
    for title, table in tables.items():
        heading, rows = table(results)
        written.append(f"**{title}**\n\n{markdown(heading, rows)}\n")
        show(title, heading, rows)
    (output / "table.md").write_text("\n".join(written), encoding="utf-8")


# ---------------------------------------------------------------- one set, one seed


def _work(name: str, seed: int, data_dir: Path | None, device: str) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started, device = time.monotonic(), find_device(device)
    wanted = _run(name, seed, data_dir, device)
    data = read(wanted)
    trained, fitted = _best(wanted, data)
    engines = {
        engine: with_conditional(fitted, _asking(trained, engine), data) for engine in ("network", "energy")
    }
    losses = {engine: one.conditional["losses"][engine] for engine, one in engines.items() if one.conditional}
    losses["task net"] = engines["network"].conditional["losses"]["task net"]  # type: ignore[index]
    chains = Chains.fit(trained, data, device, seed)
    seconds = round(time.monotonic() - started, 1)
    figures, costs = _measured(name, seed, data, fitted.model, engines, chains, device)
    result = {
        "kind": "known",
        "dataset": name,
        "seed": seed,
        "split": data.split_name,
        "valid_log_loss": losses,
        "chosen": min(("network", "energy"), key=losses.__getitem__),
        "network": {name: getattr(trained.settings, name) for name in ("task_layers", "task_dropout")},
        "figures": figures,
        "milliseconds": costs,
        "seconds": seconds,
        "device": device,
        "versions": versions(),
    }
    return [result]


def _whole(name: str, seed: int, data_dir: Path | None, device: str) -> list[dict[str, Any]]:
    """Trains with whole sets as the goal, and predicts those of test instances in several ways."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started, device = time.monotonic(), find_device(device)
    wanted = dataclasses.replace(_run(name, seed, data_dir, device), goal="exact-match")
    data = read(wanted)
    trained, fitted = _best(wanted, data)
    joint = with_conditional(fitted, _asking(trained, "energy"), data).model
    chains = Chains.fit(trained, data, device, seed)
    exact, weight = _exact(data, fitted.model, joint, chains, trained, device)
    about = {"kind": "whole", "dataset": name, "seed": seed, "split": data.split_name, "seen": weight}
    seconds = round(time.monotonic() - started, 1)
    return [{**about, "exact": exact, "seconds": seconds, "versions": versions()}]


def _run(name: str, seed: int, data_dir: Path | None, device: str) -> Run:
    """Cross-entropy with default settings, without the data set's recipe."""
    return Run(
        name,
        "cross-entropy",
        settings=Settings(),
        goal="f1",
        seed=seed,
        data_dir=data_dir,
        device=device,
        progress=False,
    )


def _best(run: Run, data: Loaded) -> tuple[Run, Fitted]:
    """Of the networks that `auto` compares, the one that is best for the goal on validation data."""
    metric = "f1_expected" if run.goal == "f1" else "exact_match_tuned"
    runs = [
        dataclasses.replace(run, settings=Settings.of(changes))
        for changes in data.task.input.variants.values()
    ]
    trained = [(one, fit(one, data)) for one in runs]
    return max(trained, key=lambda pair: pair[1].metrics["valid"][metric])


def _asking(run: Run, engine: str) -> Run:
    assert run.settings is not None
    settings = Settings.of({**dataclasses.asdict(run.settings), "conditional": engine})
    return dataclasses.replace(run, settings=settings)


def told(name: str, truth: Tensor, share: float, both: bool, seed: int) -> Tensor:
    """What is known of true sets ``(instances, labels)``: each true label with a chance, or each label.

    Of completed digits, whole rows of pixels.

    >>> told("bibtex", torch.tensor([[1.0, 0.0]]), 1.0, both=False, seed=0)
    tensor([[1., nan]])
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    if name == "digits-completion":
        width = 8
        rows = torch.rand(len(truth), truth.shape[1] // width, generator=generator) < share
        return torch.where(rows.repeat_interleave(width, 1), truth, torch.nan)
    chosen = torch.rand(truth.shape, generator=generator) < share
    return torch.where(chosen if both else chosen & (truth > 0), truth, torch.nan)


def _measured(
    name: str, seed: int, data: Loaded, plain: Model, engines: Any, chains: Chains, device: str
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    base, truth = _predicted(plain, data.test, device)
    found, costs = [], dict[str, float]()
    started = time.monotonic()
    plain.probabilities(data.test, device)
    costs["task net"] = 1e3 * (time.monotonic() - started) / len(truth)
    for both in (False,) if name == "digits-completion" else (False, True):
        for share in SHARES:
            known = told(name, truth, share, both, seed)
            answers = {IGNORING: base}
            for engine in ("network", "energy"):
                model = engines[engine].model
                started = time.monotonic()
                answers[engine] = model.probabilities(data.test, device, known)[0].cpu()
                if share == 0.5:
                    costs[engine] = 1e3 * (time.monotonic() - started) / len(truth)
            started = time.monotonic()
            answers[CHAINS] = chains.probabilities(data.test, known, device).cpu()
            costs[CHAINS] = 1e3 * (time.monotonic() - started) / len(truth)
            for title, relaxed in answers.items():
                about = {"share": share, "both": both, "title": title}
                found.append(about | _figures(relaxed, truth, known))
    return found, {title: round(value, 3) for title, value in costs.items()}


def _predicted(model: Model, data: Dataset, device: str) -> tuple[Tensor, Tensor]:
    relaxed, truth = model.probabilities(data, device)
    assert truth is not None
    return relaxed.cpu().float(), truth.cpu().float()


def _figures(relaxed: Tensor, truth: Tensor, known: Tensor) -> dict[str, float]:
    """F1 of what is not known, by the highest expected F1; whole sets right, by a threshold of 0.5."""
    free = known.isnan()
    rest = torch.where(free, relaxed, 0)
    chosen, true = ExpectedF1()(rest) * free, truth * free
    some = true.sum(1) > 0
    f1 = 2 * (chosen * true).sum(1) / (chosen.sum(1) + true.sum(1)).clamp_min(1e-9)
    whole = torch.where(free, (relaxed >= 0.5).float(), truth)
    return {"f1": float(f1[some].mean()), "exact": float((whole == truth).all(1).float().mean())}


def _exact(
    data: Loaded, plain: Model, joint: Model, chains: Chains, run: Run, device: str
) -> tuple[dict[str, float], float]:
    """Shares of test sets that are predicted right as a whole, in several ways; and what seen sets weigh."""
    base, truth = _predicted(plain, data.test, device)
    valid, known = _predicted(plain, data.valid, device)
    threshold = tune_threshold(valid, known, goal="exact-match")
    nothing = torch.full_like(base, torch.nan)
    engine = joint.conditional
    assert isinstance(engine, EnergyConditional)
    engine, weight = engine.cpu(), float(engine.seen.weight)

    def likeliest() -> Tensor:
        return torch.cat([engine.likeliest(part, nothing[: len(part)]) for part in base.split(512)])

    found = {
        "cross-entropy at 0.5": (base >= 0.5).float(),
        "cross-entropy, tuned": (base >= threshold).float(),
        "energy": likeliest(),
        CHAINS: (chains.probabilities(data.test, nothing, device).cpu() >= 0.5).float(),
        "one chain": (chains.probabilities(data.test, nothing, device, only=1).cpu() >= 0.5).float(),
        "label powerset": powerset(data, run, device),
    }
    engine.seen.weight.zero_()
    found["energy, seen sets not preferred"] = likeliest()
    if data.name == "digits-pairs":
        found["cross-entropy, two best"] = torch.zeros_like(base).scatter(1, base.topk(2, 1).indices, 1)
    return {title: float((sets == truth).all(1).float().mean()) for title, sets in found.items()}, weight


# ---------------------------------------------------------------- the others


class Chain(nn.Module):
    """Logits of labels in an order: of a network, and of the labels before each (Read et al., 2011).

    Args:
        net: from inputs to logits.
        order: of the labels.

    >>> chain = Chain(nn.Linear(3, 2), torch.tensor([1, 0]))
    >>> chain.before
    tensor([[0., 0.],
            [1., 0.]])
    """

    before: Tensor

    def __init__(self, net: nn.Module, order: Tensor) -> None:
        super().__init__()
        self.net, self.order = net, order.tolist()
        self.weights = nn.Parameter(torch.zeros(len(order), len(order)))
        place = order.argsort()
        self.register_buffer("before", (place.unsqueeze(1) < place).float())

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        inputs, y = x
        logits: Tensor = self.net(inputs) + y @ (self.weights * self.before)
        return logits

    @torch.no_grad()
    def probabilities(self, x: Tensor, known: Tensor) -> Tensor:
        """Chances of labels one after another, each given those before; what is known comes as it is."""
        logits, weights = self.net(x), self.weights * self.before
        y, chances = torch.zeros_like(logits), torch.zeros_like(logits)
        for label in self.order:
            chances[:, label] = (logits[:, label] + y @ weights[:, label]).sigmoid()
            told = known[:, label]
            y[:, label] = torch.where(told.isnan(), (chances[:, label] >= 0.5).float(), told)
        return torch.where(known.isnan(), chances, known)


class WithTruth:
    """Any data set whose inputs are ``(x, y)``, as chains are trained."""

    def __init__(self, data: Dataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Tensor) -> Batch:
        batch = self.data.batch(indices)
        return batch._replace(x=(batch.x, batch.y.float()))


class Chains:
    """An ensemble of `Chain` in random orders, each over a network of its own: means of their chances."""

    def __init__(self, members: Sequence[Chain]) -> None:
        self.members = members

    @classmethod
    def fit(cls, run: Run, data: Loaded, device: str, seed: int) -> Chains:
        members, settings = [], run.settings
        assert settings is not None
        space = data.task.space(settings)
        for number in range(_CHAINS):
            torch.manual_seed(100 * seed + number)
            order = torch.randperm(len(data.task.output.names))
            chain = Chain(data.task.task_net(settings), order)
            method = CrossEntropy(chain, space)
            parts = WithTruth(data.train.on(device)), WithTruth(data.valid.on(device))
            _trainer(method, run, seed, device).fit(*parts)
            members.append(chain.eval())
        return cls(members)

    def probabilities(self, data: Dataset, known: Tensor, device: str, only: int = _CHAINS) -> Tensor:
        """Means of the chances of ``only`` so many chains, ``(instances, labels)``."""
        found = []
        for rows in torch.arange(len(data)).split(512):
            batch, told = data.batch(rows).to(device), known[rows].to(device)
            each = [member.to(device).probabilities(batch.x, told) for member in self.members[:only]]
            found.append(torch.stack(each).mean(0).cpu())
        return torch.cat(found)


def _trainer(method: CrossEntropy, run: Run, seed: int, device: str, **options: Any) -> Trainer:
    settings = run.settings
    assert settings is not None
    names = "weight_decay", "batch_size", "patience", "patience_steps", "clip"
    given = {name: getattr(settings, name) for name in names} | {"monitor": LOG_LOSS.name} | options
    return Trainer(
        method,
        lr=settings.task_lr,
        max_epochs=settings.epochs,
        seed=seed,
        device=device,
        progress=False,
        **given,
    )


def powerset(data: Loaded, run: Run, device: str) -> Tensor:
    """Test sets by a softmax over all sets that training has (Tsoumakas & Vlahavas, 2007)."""
    settings = run.settings
    assert settings is not None
    parts = [one.batch(torch.arange(len(one))).to(device) for one in (data.train, data.valid, data.test)]
    sets, numbers = parts[0].y.float().unique(dim=0, return_inverse=True)
    torch.manual_seed(run.seed)
    hidden, layers = settings.task_hidden, settings.task_layers
    net = MLP(parts[0].x.shape[1], hidden, layers, len(sets), settings.task_dropout).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=settings.task_lr, weight_decay=settings.weight_decay)
    best, kept, since = -1.0, net.state_dict(), 0
    for _ in range(settings.epochs):
        net.train()
        for rows in torch.randperm(len(numbers)).split(32):
            inputs = data.train.batch(rows).to(device).x
            loss = F.cross_entropy(net(inputs), numbers[rows.to(device)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            right = float((sets[net(parts[1].x).argmax(1)] == parts[1].y).all(1).float().mean())
        since += 1
        if right > best:
            best, since = right, 0
            kept = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        if since > settings.patience:
            break
    net.load_state_dict(kept)
    with torch.no_grad():
        likeliest: Tensor = net.eval()(parts[2].x).argmax(1)
    chosen: Tensor = sets[likeliest].cpu()
    return chosen


# ---------------------------------------------------------------- planted errors


def plant(truth: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Sets ``(instances, labels)`` of which 5 % have one label too many or too few, and which those are.

    A label too many is drawn by the labels' frequencies.

    >>> changed, wrong = plant(torch.eye(4).repeat(100, 1), seed=0)
    >>> int(wrong.sum()), bool(((changed != torch.eye(4).repeat(100, 1)).sum(1) == wrong).all())
    (20, True)
    """
    generator = torch.Generator().manual_seed(2000 + seed)
    wrong = torch.zeros(len(truth), dtype=torch.bool)
    wrong[torch.randperm(len(truth), generator=generator)[: round(_FLIPPED * len(truth))]] = True
    changed, shares = truth.clone(), truth.mean(0) + 1e-9
    for row in wrong.nonzero().flatten().tolist():
        fewer = bool(truth[row].any()) and float(torch.rand((), generator=generator)) < 0.5
        chances = truth[row] if fewer else shares * (1 - truth[row])
        label = torch.multinomial(chances + 0.0, 1, generator=generator)
        changed[row, label] = 1 - changed[row, label]
    return changed, wrong


def _plant(name: str, seed: int, data_dir: Path | None, device: str) -> list[dict[str, Any]]:
    """Plants errors in all parts, trains, and ranks the test instances, which no network was trained on."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started, device = time.monotonic(), find_device(device)
    run, parts, wrong = _run(name, seed, data_dir, device), {}, torch.zeros(0)
    data = read(run)
    for place, part in enumerate(("train", "valid", "test")):
        examples = getattr(data, part)
        sets, planted = plant(examples.batch(torch.arange(len(examples))).y.float(), 10 * seed + place)
        names = data.task.output.names
        parts[part] = examples.replace(target=LabelTable(sets.numpy().astype("uint8"), list(names)))
        wrong = planted
    data = dataclasses.replace(data, **parts)
    run, fitted = _best(run, data)
    model = with_conditional(fitted, _asking(run, "energy"), data).model
    relaxed, given = _predicted(model, data.test, device)
    engine = model.conditional
    assert isinstance(engine, EnergyConditional)
    engine, found = engine.cpu(), []
    for rows in torch.arange(len(given)).split(512):
        found.append(engine.doubts(relaxed[rows], given[rows])[0])
    own = torch.where(given > 0, relaxed, 1 - relaxed).clamp_min(1e-7)
    unlikely, best = -own.log().sum(1), relaxed.maximum(1 - relaxed).log().sum(1)
    rankings = {
        "energy": torch.cat(found),
        "cross-entropy": unlikely,
        "cross-entropy, beside its likeliest set": unlikely + best,
        "cleanlab's formula": -smoothed(own),
    }
    count = max(1, round(_FLIPPED * len(given)))
    precision = {
        title: float(wrong[one.topk(count).indices].float().mean()) for title, one in rankings.items()
    }
    seconds = round(time.monotonic() - started, 1)
    about = {"kind": "planted", "dataset": name, "seed": seed, "split": data.split_name, "planted": count}
    return [{**about, "precision": precision, "seconds": seconds, "versions": versions()}]


def smoothed(own: Tensor, alpha: float = 0.8) -> Tensor:
    """The score of an instance from its labels' self-confidence ``(instances, labels)``, as cleanlab's.

    Its exponential moving average from the highest to the lowest (Thyagarajan et al., 2022), written anew
    from the paper.

    >>> smoothed(torch.tensor([[1.0, 0.5]]))
    tensor([0.6000])
    """
    ordered = own.sort(1, descending=True).values
    score = ordered[:, 0]
    for confidence in ordered.unbind(1)[1:]:
        score = alpha * confidence + (1 - alpha) * score
    return score


# ---------------------------------------------------------------- tables


def _grouped(results: Sequence[dict[str, Any]], kind: str) -> dict[str, list[dict[str, Any]]]:
    of_kind = [one for one in results if one["kind"] == kind]
    return {name: mine for name in SETS if (mine := [one for one in of_kind if one["dataset"] == name])}


def known_table(
    results: Sequence[dict[str, Any]], both: bool = False, metric: str = "f1"
) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: a metric in points, by data, engine and share; the engine chosen on valid in bold."""
    heading = ["data", "what is known is", *(f"{100 * share:.0f} %" for share in SHARES), "chosen", "seeds"]
    rows = []
    for name, mine in _grouped(results, "known").items():
        for title in (IGNORING, NETWORK, ENERGY, CHAINS):
            cells = []
            for share in SHARES:
                found = [
                    100 * figure[metric]
                    for one in mine
                    for figure in one["figures"]
                    if (figure["share"], figure["title"], figure["both"]) == (share, title, both)
                ]
                if found:
                    cells.append(spread(found))
            chosen = sum(one["chosen"] == title for one in mine)
            times = f"{chosen} of {len(mine)}" if title in (NETWORK, ENERGY) else ""
            if cells:
                rows.append([name, title, *cells, times, _seeds(mine)])
    return heading, rows


def exact_table(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: whole sets right, in points, where nothing is known."""
    grouped = _grouped(results, "whole")
    titles = list(dict.fromkeys(title for mine in grouped.values() for one in mine for title in one["exact"]))
    rows = []
    for title in titles:
        cells = []
        for mine in grouped.values():
            found = [100 * one["exact"][title] for one in mine if title in one["exact"]]
            cells.append(spread(found) if found else "")
        rows.append([title, *cells])
    return ["whole sets right", *grouped], rows


def planted_table(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: precision among the first 5 % of test instances, in points."""
    grouped = _grouped(results, "planted")
    titles = list(
        dict.fromkeys(title for mine in grouped.values() for one in mine for title in one["precision"])
    )
    rows = [
        [title, *(spread([100 * one["precision"][title] for one in mine]) for mine in grouped.values())]
        for title in titles
    ]
    return ["ranked by", *grouped], rows


def cost_table(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: milliseconds an instance on a CPU, in batches of 512."""
    grouped = _grouped([one for one in results if one.get("device") == "cpu"], "known")
    rows = []
    for title in ("task net", NETWORK, ENERGY, CHAINS):
        means = (statistics.fmean(one["milliseconds"][title] for one in mine) for mine in grouped.values())
        rows.append([title, *(f"{mean:.2f}" for mean in means)])
    return ["milliseconds an instance", *grouped], rows


def _seeds(results: Sequence[dict[str, Any]]) -> str:
    return ", ".join(str(one["seed"]) for one in sorted(results, key=lambda one: int(one["seed"])))
