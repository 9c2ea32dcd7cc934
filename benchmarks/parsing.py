"""Constituency trees of short sentences, as tags of words and as sequences of brackets (InfNet+ A.1).

Sentences have at most twenty words, and 4,000 of them, drawn by the seed, are for training.  Taggers say all
of a tree at once: a BiLSTM with cross-entropy, with a CRF and with SEAL-NCE.  Sequence-to-sequence networks
with attention write brackets one after the other: cross-entropy alone, and InfNet+ with stacked networks over
the states of that same network, which is trained by cross-entropy first, without and with a language model of
brackets in the energy.  A row with an energy has one of weight 0 beside it, which trains as long.  Each row
has two trials with seed 0, of which validation data choose one for the other seeds.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.grid import carried_out, chance, finished, markdown, show, with_error
from benchmarks.seal import CONTROL
from lossnet.brackets import Tree, count_brackets, linearise, read_linear, read_step
from lossnet.data import Examples, Sentences, TreeColumn
from lossnet.data.examples import by_length
from lossnet.data.registry import read_raw
from lossnet.energies import Chain, Sum, TagLM
from lossnet.inputs import Words
from lossnet.loading import Loaded
from lossnet.losses import Margin, TaskLoss
from lossnet.methods import CrossEntropy
from lossnet.methods.infnet_plus import InfNetPlus, Stacked
from lossnet.nets import Decoder, Prefixed, Tagger
from lossnet.nets.decoder import prefixes, write
from lossnet.recipes import recipe_settings
from lossnet.run import Run, find_device, fit, versions
from lossnet.runs import spread
from lossnet.scores import TokenCost
from lossnet.settings import Settings
from lossnet.spaces import Batch, Tags
from lossnet.spans import scores_of_counts
from lossnet.training import Trainer
from lossnet.training.engines import Eager

__all__ = ["ROWS", "chosen", "run", "table", "work"]

DATA = "ewt-trees"
#: words of a sentence, and sentences to train on, at most
LONGEST, TRAINED = 20, 4000
#: sentences of which the time is taken
TIMED = 256
RATES: tuple[Mapping[str, Any], ...] = (
    {},
    {"task_lr": 1e-3, "energy_lr": 1e-3},
)
WEIGHTS: tuple[Mapping[str, Any], ...] = ({"energy_weight": 0.1}, {"energy_weight": 1.0})


class Row(NamedTuple):
    """A row of the table: a method, what differs from its settings, its trials, and its control."""

    method: str
    changes: Mapping[str, Any]
    trials: Sequence[Mapping[str, Any]]
    control: str = ""


#: taggers, with the recipes of the set
TAGGERS = {
    "tags, cross-entropy": Row("cross-entropy", {}, RATES),
    "tags, CRF": Row("crf", {}, RATES, "tags, cross-entropy"),
    "tags, SEAL-NCE, weight 0": Row("seal", CONTROL, RATES),
    "tags, SEAL-NCE": Row("seal", {}, WEIGHTS, "tags, SEAL-NCE, weight 0"),
}
#: networks that write brackets; rates of the training against an energy are a quarter of these
WRITERS = {
    "brackets, weight 0": Row("cross-entropy", {}, RATES),
    "brackets, InfNet+": Row("infnet-plus", {"tag_models": "none"}, WEIGHTS, "brackets, weight 0"),
    "brackets, InfNet+, language model": Row(
        "infnet-plus", {"tag_models": "forward"}, WEIGHTS, "brackets, weight 0"
    ),
}
ROWS = {**TAGGERS, **WRITERS}
#: epochs of all runs at most; writers have half of them before there is an energy
LIMITS = {"epochs": 20, "patience": 6}


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs all trials with seed 0, the chosen ones with the others; writes ``results.jsonl``."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"

    def line(one: dict[str, Any]) -> str:
        value = 100 * one["metrics"]["test"]["bracket_f1"]
        return f"{one['title']}, trial {one['trial'] + 1}, seed {one['seed']}: {value:.2f}"

    def carry(cases: Sequence[tuple[str, int, int]]) -> None:
        done = {(one["title"], one["trial"], one["seed"]) for one in finished(store)}
        carried_out(
            [partial(work, *case, data_dir, device) for case in cases if case not in done], store, jobs, line
        )

    carry([(title, trial, 0) for title, row in ROWS.items() for trial in range(len(row.trials))])
    lines = finished(store)
    carry([(title, chosen(lines, title), seed) for seed in range(1, seeds) for title in ROWS])
    heading, rows = table(finished(store))
    (output / "table.md").write_text(f"{markdown(heading, rows)}\n", encoding="utf-8")
    show("test, in points", ["data", *heading], [[DATA, *row] for row in rows])


def chosen(lines: Sequence[Mapping[str, Any]], title: str) -> int:
    """Return the trial with the best brackets on validation data with seed 0."""
    tried: dict[int, float] = {
        one["trial"]: one["metrics"]["valid"]["bracket_f1"]
        for one in lines
        if (one["title"], one["seed"]) == (title, 0)
    }
    return max(tried, key=lambda trial: tried[trial])


def work(title: str, trial: int, seed: int, data_dir: Path | None, device: str) -> list[dict[str, Any]]:
    """Return the line of one run."""
    torch.set_num_threads(1)
    row, started = ROWS[title], time.monotonic()
    data = loaded(seed, data_dir)
    recipe = recipe_settings(DATA, row.method, _loss(row.method))
    settings = Settings(**{**recipe, **LIMITS, **row.changes, **row.trials[trial]})
    train = tagger if title in TAGGERS else writer
    about = {"title": title, "trial": trial, "seed": seed, "dataset": DATA, "method": row.method}
    changed = {**LIMITS, **row.changes, **row.trials[trial]}
    result = train(data, row.method, settings, seed, find_device(device))
    took = time.monotonic() - started
    return [{**about, "settings": changed, **result, "seconds": took, "versions": versions()}]


def _loss(method: str) -> str:
    return {"cross-entropy": "none", "crf": "likelihood", "seal": "nce", "infnet-plus": "margin"}[method]


def loaded(seed: int, data_dir: Path | None, trained: int = TRAINED, tested: int | None = None) -> Loaded:
    """Return the short sentences of the set, ``trained`` of them to train on and ``tested`` to test."""
    raw = read_raw(DATA, data_dir, progress=False)
    parts = []
    for part in raw.parts:
        source: Any = part.source
        short = np.flatnonzero([len(tokens) <= LONGEST for tokens in source.tokens])
        if part is raw.parts[0]:
            short = np.sort(np.random.default_rng(seed).permutation(short)[:trained])
        parts.append(part.take(short if part is raw.parts[0] else short[:tested]))
    sources: Any = [part.source for part in raw.parts]
    fitting = Words.fitting(raw.entry, sources, data_dir, None, None)
    train, valid, test = parts
    return Loaded.from_parts(train, valid, test, fitting, DATA, raw.split_name)


# ---------------------------------------------------------------- tags of words


def tagger(data: Loaded, method: str, settings: Settings, seed: int, device: str) -> dict[str, Any]:
    """Train a tagger; return its metrics and how fast it is."""
    run = Run(DATA, method, _loss(method), settings, seed=seed, device=device, progress=False)
    fitted = fit(run, data)
    predict, output = fitted.model.method.cpu().eval().predict, data.task.output
    decode = output.decoder(None, fitted.model.decision)

    def parse(rows: Tensor) -> object:
        batch = data.test.batch(rows)
        return output.named(decode(predict(batch.x, batch.mask)), data.test.source.take(rows.numpy()))

    return {
        "metrics": fitted.metrics,
        "sentences_a_second": speed(parse, len(data.test)),
        "best_epoch": fitted.stages[-1]["best_epoch"],
        "epochs": len(fitted.history),
        "steps": fitted.steps,
    }


def speed(parse: Callable[[Tensor], object], sentences: int) -> float:
    """Return how many sentences a second are parsed on one core, the better of two times."""
    rows = torch.arange(min(TIMED, sentences))
    taken = []
    for _ in range(2):
        started = time.perf_counter()
        with torch.no_grad():
            for some in rows.split(64):
                parse(some)
        taken.append(time.perf_counter() - started)
    return len(rows) / min(taken)


# ---------------------------------------------------------------- sequences of brackets


class Sequences:
    """Sentences and the brackets of their trees, as numbers; the last symbol ends a sequence."""

    def __init__(self, examples: Examples, symbols: Sequence[str]) -> None:
        column: Any = examples.target
        source: Any = examples.source
        assert isinstance(column, TreeColumn)
        assert isinstance(source, Sentences)
        self.source, self.symbols, self.trees = source, symbols, column.trees
        self.punctuation = [
            [word for word, tag in enumerate(tags) if read_step(tag).punctuation] for tags in column.tags
        ]
        numbers = {symbol: number for number, symbol in enumerate(symbols)}
        self._rows = [
            torch.tensor([*(numbers[symbol] for symbol in linearise(tree, len(tokens))), len(symbols) - 1])
            for tree, tokens in zip(self.trees, source.tokens, strict=True)
        ]
        self._lengths = torch.tensor([len(row) for row in self._rows])

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, indices: Tensor) -> Batch:
        """Return sentences with what is before each symbol, and the symbols, one-hot."""
        rows = indices.cpu()
        numbers = nn.utils.rnn.pad_sequence([self._rows[row] for row in rows.tolist()], batch_first=True)
        before = prefixes(numbers, self._lengths[rows])
        mask = (before != 0).float()
        y = F.one_hot(numbers, len(self.symbols)).float() * mask.unsqueeze(-1)
        return Batch(Prefixed(self.source.batch(rows), before), y, mask)

    def arranged(self, order: Tensor, batch_size: int) -> Tensor:
        """Return row numbers in an order by which batches have sequences of like length."""
        return by_length(order, self._lengths, batch_size)

    def tree(self, row: int, written: Sequence[int]) -> tuple[Tree, bool]:
        """Return the tree that was written for a sentence, and whether that took no repair."""
        symbols, length = [self.symbols[number] for number in written], len(self.source.tokens[row])
        symbols = symbols[: symbols.index(self.symbols[-1])] if self.symbols[-1] in symbols else symbols
        tree = read_linear(symbols, length)
        return tree, linearise(tree, length) == tuple(symbols)

    def parse(self, net: Tagger, rows: Tensor) -> list[tuple[Tree, bool]]:
        """Return the trees that a network writes for some sentences, and whether they took no repair."""
        tokens = self.source.batch(rows).to(next(net.parameters()).device)
        written = write(net, tokens, len(self.symbols) - 1, longest=10 + 5 * tokens.shape[1])
        return [self.tree(row, numbers) for row, numbers in zip(rows.tolist(), written.tolist(), strict=True)]

    def metrics(self, net: Tagger) -> dict[str, float]:
        """Return the metrics of what a network writes; accuracy is that of symbols after the right ones."""
        counts = Counter[str]()
        with torch.no_grad():
            for rows in torch.arange(len(self)).split(256):
                for row, (tree, whole) in zip(rows.tolist(), self.parse(net, rows), strict=True):
                    one = count_brackets(tree, self.trees[row], self.punctuation[row])
                    counts.update(one)
                    exact = one["right"] == one["guessed"] == one["real"]
                    counts.update(exact=exact, whole=whole)
        scores = scores_of_counts(counts)
        return {
            "bracket_f1": scores.pop("span_f1"),
            **scores,
            "exact_match": counts["exact"] / len(self),
            "well_formed": counts["whole"] / len(self),
        }


def writer(data: Loaded, method: str, settings: Settings, seed: int, device: str) -> dict[str, Any]:
    """Train a network that writes brackets, first by cross-entropy alone; return its metrics and speed."""
    parts = [data.train, data.valid, data.test]
    columns: list[Any] = [part.target for part in parts]
    sources: list[Any] = [part.source for part in parts]
    used = {
        symbol
        for column, source in zip(columns, sources, strict=True)
        for tree, tokens in zip(column.trees, source.tokens, strict=True)
        for symbol in linearise(tree, len(tokens))
    }
    symbols = ("*", *sorted(used - {"*"}), "end")
    train, valid, test = (Sequences(part, symbols) for part in parts)
    torch.manual_seed(seed)
    encoder: Any = data.task.input.network(settings, "position", "task")
    net = Tagger(Decoder(encoder, len(symbols), moves=0, dropout=settings.task_dropout), len(symbols))
    space = Tags(len(symbols))
    first = trainer(CrossEntropy(net, space), settings, 1.0, seed, device)
    first.fit(train, valid)
    second = trainer(against(net, space, method, settings), settings, 0.25, seed + 1, device)
    second.fit(train, valid)
    net.eval()
    metrics = {part: sequences.metrics(net) for part, sequences in (("valid", valid), ("test", test))}
    net.cpu()
    stages = [*first.stages, *second.stages]
    return {
        "metrics": metrics,
        "sentences_a_second": speed(lambda rows: test.parse(net, rows), len(test)),
        "best_epoch": stages[-1]["best_epoch"],
        "epochs": sum(stage["epochs"] for stage in stages),
        "steps": first.steps_taken + second.steps_taken,
        "stages": stages,
    }


def against(net: Tagger, space: Tags, method: str, settings: Settings) -> Any:
    """Return what goes on training a network: cross-entropy, or InfNet+ over its states of now."""
    if method == "cross-entropy":
        return CrossEntropy(net, space)
    features: Any = copy.deepcopy(net.encoder).requires_grad_(False)
    terms = [Chain(features.width, space.tags)]
    models = [TagLM(space.tags, settings.energy_hidden)] if settings.tag_models == "forward" else []
    energy = Sum(features, *terms, *models)
    with torch.no_grad():  # the local term begins as the network that was trained (InfNet+ A.1)
        head: Any = net.head
        terms[0].local.weight.copy_(head.weight)
        terms[0].local.bias.copy_(head.bias)
    task_loss = TaskLoss(settings.energy_weight, settings.ce_weight)
    return InfNetPlus(net, Stacked(space), energy, space, Margin(score=TokenCost()), task_loss)


def trainer(method: Any, settings: Settings, share: float, seed: int, device: str) -> Trainer:
    """Return the trainer of one of a writer's two stages, with a share of the learning rates."""
    rates = {"energy": settings.energy_lr, "task_net": settings.task_lr, "cost_net": settings.task_lr}
    return Trainer(
        method,
        lr={name: share * rate for name, rate in rates.items()},
        weight_decay=settings.weight_decay,
        batch_size=settings.batch_size,
        max_epochs=settings.epochs // 2,
        patience=settings.patience // 2,
        monitor="accuracy",
        clip=settings.clip,
        seed=seed,
        device=device,
        progress=False,
        engine=Eager(torch.device(device)),
    )


# ---------------------------------------------------------------- tables

COLUMNS = {
    "bracket_f1": "bracket F1", "exact_match": "whole trees", "well_formed": "well-formed",
}  # fmt: skip


def table(lines: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: means over seeds, and what a row has more than its control, paired by seed."""
    compared_by = "valid F1", "− control", "p"
    heading = ["method", "trial", *COLUMNS.values(), *compared_by, "sentences / s", "epochs", "seeds"]
    rows, runs = [], dict[str, dict[int, Mapping[str, Any]]]()
    for title, row in ROWS.items():
        mine = [one for one in lines if one["title"] == title]
        if not mine:
            continue
        trial = chosen(mine, title)
        runs[title] = {one["seed"]: one for one in mine if one["trial"] == trial}
        own = [runs[title][seed] for seed in sorted(runs[title])]
        figures = [spread([100 * one["metrics"]["test"][name] for one in own]) for name in COLUMNS]
        figures.append(spread([100 * one["metrics"]["valid"]["bracket_f1"] for one in own]))
        other = runs.get(row.control, {})
        shared = sorted(runs[title].keys() & other.keys())
        more = [100 * (_f1(runs[title][seed]) - _f1(other[seed])) for seed in shared]
        compared = [with_error(more), chance(more)] if len(more) > 1 else ["", ""]
        changes = ", ".join(f"{name} {value}" for name, value in row.trials[trial].items())
        pace = f"{np.median([one['sentences_a_second'] for one in own]):.0f}"
        epochs = ", ".join(str(one["epochs"]) for one in own)
        seeds = ", ".join(map(str, sorted(runs[title])))
        rows.append([title, changes or "the recipe", *figures, *compared, pace, epochs, seeds])
    return heading, rows


def _f1(one: Mapping[str, Any]) -> float:
    return float(one["metrics"]["test"]["bracket_f1"])
