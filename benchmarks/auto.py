"""Method ``auto`` beside each member of its portfolio, for F1 and for whole sets right.

A run of ``auto`` trains every member on the same division of the data, so that one run is a row of the table
for each of them.  The members that are compared by cross-validation cost more than what their rows say.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.grid import carried_out, finished, markdown, show
from lossnet.data import MultiLabelData
from lossnet.loading import Loaded, load
from lossnet.run import Run, train
from lossnet.runs import spread

__all__ = ["run"]

#: goals, each with the metric that its table shows
GOALS = {"f1": "f1_expected", "exact-match": "exact_match_tuned"}
#: sets that are read from files, and those that are made of what scikit-learn brings
SETS = ("emotions", "genbase", "cal500", "bibtex", "digits-pairs", "cancer", "wine")


def made(name: str, seed: int = 0) -> Loaded | None:
    """A table of scikit-learn's as label sets: columns of the second half that are above their median.

    The seed divides it, since the fifth that tests has 36 rows of wine and 114 of cancer.
    """
    from sklearn import datasets

    loaders = {"cancer": datasets.load_breast_cancer, "wine": datasets.load_wine}
    if name not in loaders:
        return None
    table = loaders[name]()
    half = table.data.shape[1] // 3 if name == "cancer" else table.data.shape[1] // 2
    x, others = table.data[:, :half], table.data[:, -half:]
    y = np.column_stack([table.target == kind for kind in np.unique(table.target)])
    examples = MultiLabelData.from_arrays(x, np.hstack([others > np.median(others, axis=0), y]))
    return load(name, data=examples, seed=seed)


def run(output: Path, seeds: int, data_dir: Path | None, device: str, jobs: int) -> None:
    """Runs ``auto`` on all sets; writes ``results.jsonl``, a line for each member too, and ``table.md``."""
    output.mkdir(parents=True, exist_ok=True)
    store = output / "results.jsonl"
    lines = finished(store)
    done = {(line["dataset"], line["goal"], line["seed"]) for line in lines}
    cases = [(name, goal, seed) for seed in range(seeds) for name in SETS for goal in GOALS]
    tasks = [partial(_work, *case, data_dir, device) for case in cases if case not in done]

    def told(line: dict[str, Any]) -> str:
        value = 100 * line["metrics"]["test"][GOALS[line["goal"]]]
        return f"{line['dataset']} for {line['goal']}, {_title(line)}, seed {line['seed']}: {value:.2f}"

    lines += carried_out(tasks, store, jobs, told)
    tables = [compare(lines), regret(lines), summarise(lines)]
    (output / "table.md").write_text("\n\n".join(markdown(*one) for one in tables) + "\n", encoding="utf-8")
    for one in tables:
        show("test, in points", *one)


def _work(name: str, goal: str, seed: int, data_dir: Path | None, device: str) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    wanted = Run(
        name, "auto", goal=goal, budget=60, seed=seed, data_dir=data_dir, device=device, progress=False
    )
    return [*rows_of(train(wanted, data=made(name, seed)))]


def rows_of(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The row of ``auto``, and of each member that it trained."""
    kept = ("dataset", "split", "goal", "seed", "metrics", "seconds", "versions", "commit")
    choice = result["choice"]
    about = {"title": "auto", "chosen": choice["chosen"], "folds": choice["folds"]}
    yield {**about, **{name: result[name] for name in kept}}
    for one in choice["candidates"]:
        own = ("metrics", "seconds", "method", "loss", "settings", "scores", "best_epoch", "steps", "cut")
        yield {
            "title": one["name"].removesuffix(", shallow"),
            "network": "shallow" if one["name"].endswith(", shallow") else "",
            **{name: result[name] for name in kept},
            **{name: one[name] for name in own},
        }


def compare(lines: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: for each set and goal, ``auto`` beside cross-entropy and the best member.

    Differences are paired by seed, with their standard errors.  Time is that of ``auto`` divided by that of
    cross-entropy on one division of the data.
    """
    seconds: dict[tuple[str, str], dict[str, list[float]]] = {}
    for line in lines:
        own_seconds = seconds.setdefault((line["dataset"], line["goal"]), {}).setdefault(_title(line), [])
        own_seconds.append(line["seconds"] / len(line.get("scores", [1])))
    heading = ["data", "goal", "auto", "cross-entropy", "best member", "auto − best", "time", "seeds"]
    rows = []
    for (data, goal), by_title in _scores(lines).items():
        own, plain = by_title["auto"], by_title["cross-entropy"]
        # Of the members that were trained with every seed: the network of most of them depends on the seed.
        members = {t: v for t, v in by_title.items() if t != "auto" and v.keys() == own.keys()}
        best = max(members, key=lambda title: statistics.fmean(members[title].values()))
        gaps = [own[seed] - members[best][seed] for seed in sorted(own)]
        error = f" (s.e. {statistics.stdev(gaps) / len(gaps) ** 0.5:.2f})" if len(gaps) > 1 else ""
        gap = f"{statistics.fmean(gaps):+.2f}{error}".replace("-", "−")
        taken = seconds[data, goal]
        ratio = f"{sum(taken['auto']) / sum(taken['cross-entropy']):.0f} ×"
        figures = [spread(list(one.values())) for one in (own, plain, members[best])]
        rows.append([data, goal, *figures[:2], f"{best} {figures[2]}", gap, ratio, str(len(own))])
    return heading, rows


def regret(lines: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: what ``auto`` and each member are below the best member on test data, over the sets.

    The mean over sets, and the largest difference.
    """
    lost: dict[str, dict[str, list[float]]] = {}
    for (_, goal), by_title in _scores(lines).items():
        means = {title: statistics.fmean(values.values()) for title, values in by_title.items()}
        best = max(mean for title, mean in means.items() if title != "auto")
        for title, mean in means.items():
            lost.setdefault(title, {}).setdefault(goal, []).append(mean - best)
    heading = ["always", *(f"{goal}: {what}" for goal in GOALS for what in ("mean", "worst"))]
    rows = []
    for title, by_goal in lost.items():
        pairs = [(statistics.fmean(by_goal[goal]), min(by_goal[goal])) for goal in GOALS]
        rows.append([title, *(f"{value:+.2f}".replace("-", "−") for pair in pairs for value in pair)])
    return heading, rows


def _scores(lines: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, dict[int, float]]]:
    """Test scores in points by data and goal, title and seed, in the order of sets and goals."""
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    ordered = sorted(lines, key=lambda line: (SETS.index(line["dataset"]), [*GOALS].index(line["goal"])))
    for line in ordered:
        case = line["dataset"], line["goal"]
        value = 100 * line["metrics"]["test"][GOALS[line["goal"]]]
        found.setdefault(case, {}).setdefault(_title(line), {})[line["seed"]] = value
    return found


def _title(line: dict[str, Any]) -> str:
    """Of cross-entropy, both networks are trained; of the others, the better one."""
    shallow = line["title"] == "cross-entropy" and line.get("network") == "shallow"
    return str(line["title"]) + ", shallow" * shallow


def summarise(lines: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: for each set and goal, ``auto`` and every member, on test data in points."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["dataset"], line["goal"], _title(line)), []).append(line)
    heading = ["data", "goal", "method", "F1, expected", "exact match", "seconds", "seeds"]
    rows = []
    for data, goal in _scores(lines):
        for title in [title for name, kind, title in groups if (name, kind) == (data, goal)]:
            mine = groups[data, goal, title]
            figures = [spread([100 * line["metrics"]["test"][m] for line in mine]) for m in GOALS.values()]
            seconds = f"{statistics.mean(line['seconds'] for line in mine):.0f}"
            seeds = ", ".join(str(line["seed"]) for line in sorted(mine, key=lambda line: line["seed"]))
            rows.append([data, goal, title, *figures, seconds, seeds])
    return heading, rows
