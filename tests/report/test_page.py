import base64
import dataclasses
import io
import json
import os
import re
import shutil
import threading
from collections import Counter
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import metrics
from sklearn.calibration import calibration_curve

from lossnet.analysis import doubted, risk_coverage, tag_scores
from lossnet.build import METHODS
from lossnet.card import decoding_facts, temperature
from lossnet.decoding import Calibration
from lossnet.loading import Loaded, load
from lossnet.model import Model
from lossnet.model import load as load_model
from lossnet.outputs import Labels, Output
from lossnet.outputs.panels.labels import SUSPECTS
from lossnet.report import evidence, write
from lossnet.report.evidence import collect, load_models
from lossnet.report.markup import VOID
from lossnet.report.runs import compare, read_run
from lossnet.run import Run, train
from lossnet.settings import Settings

LABELS = ("<script>alert(1)</script>", "\"quoted' & <b>bold", "grün", "plain")


class Page(HTMLParser):
    """A page taken apart; elements that do not close where they should are an error."""

    def __init__(self, path):
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags, self.texts, self.open = [], [], []
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)

    def count(self, tag):
        return sum(found == tag for found, _ in self.tags)

    def values(self, attribute):
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]


@pytest.fixture(scope="module")
def labels_page(label_runs, tmp_path_factory):
    return Page(write(label_runs, tmp_path_factory.mktemp("page") / "labels.html", progress=False))


@pytest.fixture(scope="module")
def masks_page(mask_runs, tmp_path_factory):
    return Page(write(mask_runs, tmp_path_factory.mktemp("page") / "masks.html", progress=False))


@pytest.fixture(scope="module")
def tags_page(tag_runs, tmp_path_factory):
    return Page(write(tag_runs, tmp_path_factory.mktemp("page") / "tags.html", progress=False))


@pytest.fixture(scope="module")
def texts_page(text_run, tmp_path_factory):
    return Page(write([text_run], tmp_path_factory.mktemp("page") / "texts.html", progress=False))


@pytest.fixture(scope="module")
def images_page(labelled_image_run, tmp_path_factory):
    return Page(write([labelled_image_run], tmp_path_factory.mktemp("page") / "images.html", progress=False))


@pytest.fixture(params=["labels_page", "masks_page", "tags_page", "texts_page", "images_page"])
def page(request):
    return request.getfixturevalue(request.param)


# ---------------------------------------------------------------- any page


def test_ids_are_unique_and_links_lead_somewhere(page):
    ids = page.values("id")
    assert max(Counter(ids).values()) == 1
    assert {target.removeprefix("#") for target in page.values("href") if target.startswith("#")} <= set(ids)
    assert set(page.values("data-filters")) <= set(ids)


def test_nothing_is_fetched(page):
    for attribute in ("src", "href", "action", "srcset", "data", "xlink:href"):
        assert all(value.startswith(("data:image/png;base64,", "#")) for value in page.values(attribute))
    assert not re.search(r"https?:|@import|url\(", page.source)
    assert "link" not in dict(page.tags)
    assert page.source.startswith("<!DOCTYPE html>")


def test_no_script_runs_but_the_pages_own(page):
    assert page.count("script") == 1
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/]+='$", policy)


def test_pictures_say_what_they_show(page):
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")
    assert all(attributes["aria-label"] for tag, attributes in page.tags if tag == "svg")


def test_all_settings_are_there(page, label_runs):
    for name in json.loads((label_runs[0] / "result.json").read_text())["settings"]:
        assert name.replace("_", " ") in page.texts


def section(page, title):
    """The texts of one section, from its heading to the next section's."""
    sections = re.findall(r'<section id="[^"]*"><h2>(.*?)</h2>(.*?)</section>', page.source, re.DOTALL)
    return dict(sections)[title]


def cells(markup):
    """The rows of all tables, as texts."""
    rows = re.findall(r"<tr>(.*?)</tr>", markup, re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", row)] for row in rows]


# ---------------------------------------------------------------- training, decoding and settings


def test_the_kept_epochs_and_how_runs_predict_are_shown(labels_page, label_runs):
    rows = cells(section(labels_page, "Training"))
    for folder in label_runs:
        result = json.loads((folder / "result.json").read_text())
        (stage,) = result["stages"]
        title = "seal (nce)" if result["method"] == "seal" else "cross-entropy"
        kept = f"{stage['best_epoch']} of {stage['epochs']}"
        assert [f"{title}, seed {result['seed']}", stage["stage"], kept, stage["ended"]] in rows
    facts = [decoding_facts(load_model(folder)) for folder in label_runs]  # cross-entropy's come first
    for name in ("goal", "decoder", "threshold", "temperature"):
        plain, seal = ("; ".join(dict.fromkeys(one[name] for one in part)) for part in (facts[:2], facts[2:]))
        assert [name, seal, plain] in rows


def test_changed_settings_come_first(labels_page, label_runs):
    changed, default = section(labels_page, "Settings").split("<details>", 1)
    names = {row[0].replace(" ", "_") for row in cells(changed)[1:]}
    settings = json.loads((label_runs[0] / "result.json").read_text())["settings"]
    assert names == {name for name, value in settings.items() if value != getattr(Settings(), name)}
    assert f"{len(settings) - len(names)} default settings" in default
    assert {row[0].replace(" ", "_") for row in cells(default)} >= set(settings) - names


def edited(run, folder, **changes):
    """A copy of a run without its page, with changes to its result."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("*.html"))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, **changes}))
    return folder


def test_remarks_are_shown_once_with_their_runs(label_runs, tmp_path):
    some, all_of_them = "only <2> rows", "labels never vary"
    runs = [
        edited(label_runs[2], tmp_path / "one", remarks=[some, all_of_them]),
        edited(label_runs[3], tmp_path / "other", remarks=[all_of_them]),
    ]
    page = Page(write(runs, progress=False))
    place = page.texts.index("Before you believe these figures")
    assert page.texts[place + 1 : place + 5] == [
        some, " (seal (nce), seed 0)", all_of_them, " (all runs)"
    ]  # fmt: skip
    page = Page(write(runs[:1], progress=False))
    place = page.texts.index("Before you believe these figures")
    assert page.texts[place + 1 : place + 3] == [some, all_of_them]
    page = Page(write([edited(label_runs[2], tmp_path / "third", remarks=[])], progress=False))
    assert "Before you believe these figures" not in page.texts


@pytest.mark.parametrize("count", [3, 200])
def test_columns_are_listed(label_runs, tmp_path, count):
    used, dropped = [f"<{number}>" for number in range(count)], {"an & id": "all values differ"}
    run = edited(label_runs[2], tmp_path / "run", columns={"used": used, "dropped": dropped})
    page = Page(write([run], progress=False))
    assert [text for text in page.texts if text in used] == used
    assert (f"{count} columns" in page.texts) == (count > 100)
    assert ["an & id", "all values differ"] in cells(section(page, "Settings"))
    assert f"Columns used ({count})" in page.texts


CANDIDATES = [
    {"name": "cross-entropy", "score": 0.5, "error": 0.01, "seconds": 3.0},
    {"name": "<seal>", "score": 0.75, "error": None, "seconds": 12.5},
    {"name": "broken", "score": None, "error": None, "seconds": None},
]


@pytest.mark.parametrize("metric", ["f1_tuned", "hamming_loss"])
def test_the_choice_of_a_method_is_shown(label_runs, tmp_path, metric):
    choice = {"goal": "f1", "metric": metric, "chosen": "<seal>", "candidates": CANDIDATES}
    run = edited(label_runs[2], tmp_path / "run", choice=choice)
    page = Page(write([run], progress=False))
    chosen = section(page, "Choice of method")
    best, other = ["✓ <seal>", "75.00", "–", "12.5"], ["cross-entropy", "50.00", "1.00", "3"]
    if metric == "hamming_loss":
        best, other = other, best
    assert cells(chosen)[1:] == [best, other, ["broken", "–", "–", "–"]]
    assert chosen.count('class="dot"') == 2
    assert chosen.count('class="line"') == 1, "one has a standard error"
    assert "NaN" not in page.source


def test_choices_of_several_runs_are_told_apart(label_runs, tmp_path):
    runs = []
    for run in label_runs[2:]:
        candidates = [{**CANDIDATES[0], "score": 0.5 + len(runs) / 10}]
        choice = {"goal": "f1", "metric": "f1", "chosen": "cross-entropy", "candidates": candidates}
        runs.append(edited(run, tmp_path / run.name, choice=choice))
    chosen = section(Page(write(runs, progress=False)), "Choice of method")
    assert re.findall("<h3>(.*?)</h3>", chosen) == ["seal (nce), seed 0", "seal (nce), seed 1"]


# ---------------------------------------------------------------- probabilities


def reliability_rows(page):
    rows = cells(section(page, "Calibration"))
    return {row[0]: row[1:] for row in rows}


def ece(probabilities, truth):
    """The expected calibration error, from scikit-learn's curve."""
    probabilities, truth = np.ravel(probabilities).astype(float), np.ravel(truth).astype(float)
    frequency, predicted = calibration_curve(truth, probabilities, n_bins=10)
    counts = np.bincount(np.searchsorted(np.linspace(0, 1, 11)[1:-1], probabilities), minlength=10)
    return float(np.abs(frequency - predicted) @ counts[counts > 0] / counts.sum())


def test_calibration_of_labels(labels_page, label_runs, table):
    data, rows = load(table, labels=LABELS), reliability_rows(labels_page)
    for folder in label_runs:
        model = load_model(folder)
        raw = dataclasses.replace(model, calibration=Calibration())
        errors = [ece(*one.probabilities(data.test)) for one in (raw, model)]
        title = "cross-entropy" if "cross" in folder.name else "seal (nce)"
        name = f"{title}, seed {folder.name[-1]}"
        assert rows[name] == [temperature(model.calibration), *(f"{error:.4f}" for error in errors)]


def test_calibration_of_masks(masks_page, mask_runs):
    data, model = load(mask_runs[0].parent / "squares.npz"), load_model(mask_runs[0])
    error = ece(*model.probabilities(data.test))
    assert reliability_rows(masks_page)["seal (nce), seed 0"][2] == f"{error:.4f}"
    assert "Probabilities of each pixel to be foreground, in 10 bins" in masks_page.text


def test_calibration_of_tags_is_of_those_that_are_chosen(tags_page, tag_runs):
    model, data = load_model(tag_runs[0]), load(tag_runs[0].parent / "names")
    relaxed, truth = model.probabilities(data.test)
    probabilities, right = [], []
    for sentence, chosen, true in zip(relaxed, model.decoder()(relaxed), truth, strict=True):
        for values, mine, tag in zip(sentence, chosen, true, strict=True):
            if tag.any():
                probabilities.append(float(values[mine.argmax()]))
                right.append(float(mine.argmax() == tag.argmax()))
    rows = reliability_rows(tags_page)
    assert rows["infnet-plus (margin), seed 0"][2] == f"{ece(probabilities, right):.4f}"
    bins = {name: int(row[0].replace(",", "")) for name, row in rows.items() if " to " in name}
    assert len(bins) == 10
    assert sum(bins.values()) == len(right)


def test_whole_outputs_and_what_abstaining_brings(labels_page, label_runs, table, tags_page, tag_runs):
    rows = {row[0]: row[1:] for row in cells(section(labels_page, "Whole outputs"))}
    pairs = [(load_model(folder), load(table, labels=LABELS).test, folder) for folder in label_runs]
    names = [f"{'seal (nce)' if 'seal' in folder.name else 'cross-entropy'}, seed {folder.name[-1]}"
             for *_, folder in pairs]  # fmt: skip
    tags = {row[0]: row[1:] for row in cells(section(tags_page, "Whole outputs"))}
    pairs.append((load_model(tag_runs[0]), load(tag_runs[0].parent / "names").test, tag_runs[0]))
    for (model, test, _), row in zip(
        pairs, [*map(rows.get, names), tags["infnet-plus (margin), seed 0"]], strict=True
    ):
        relaxed, truth = model.probabilities(test)
        decoded = model.decoder()(relaxed)
        right = (decoded == truth).flatten(1).all(1)
        curve = risk_coverage(model.confidences(test, decoded), right)
        assert row[:2] == [f"{100 * float(right.float().mean()):.1f}", f"{100 * curve.area:.1f}"]
        assert row[4] == f"{100 * curve.coverage_at(0.1):.0f}"


def test_suspects_are_shown_with_likelier_labels(labels_page, label_runs, table):
    model, test = load_model(label_runs[2]), load(table, labels=LABELS).test
    relaxed, truth = model.probabilities(test)
    shown = section(labels_page, "Suspects")
    numbers = list(map(int, re.findall(r"<h3>test row (\d+)</h3>", shown)))
    assert numbers == [one.row for one in doubted(model, relaxed, truth, 12)]
    assert "likelier" in shown
    assert "label by label" in shown


def test_precision_and_recall_of_each_decoder(labels_page, label_runs, table):
    """Those of label sets as scikit-learn counts them."""
    model, data = load_model(label_runs[2]), load(table, labels=LABELS)
    relaxed, truth = model.probabilities(data.test)
    rows = {row[0]: row[1:] for row in cells(section(labels_page, "Precision and recall"))}
    known = {"0.5", "tuned", "per-label"} | (set() if model.decision.doubt else {"expected-f1"})
    assert set(rows) == {"decoder"} | known
    shown = truth.sum(0) > 0
    for name in known:
        chosen = model.decoder(name)(relaxed)
        expected = []
        for average in ("micro", "macro"):
            options = {"average": average, "zero_division": np.nan}
            precision = metrics.precision_score(truth, chosen, **options)
            recall = metrics.recall_score(truth[:, shown], chosen[:, shown], **options)
            expected += [f"{100 * value:.1f}" for value in (precision, recall)]
        assert rows[name] == expected


def test_without_a_true_label_there_is_no_curve(label_runs, tmp_path):
    comparison = compare([read_run(label_runs[2])])
    found = collect(comparison, load_models(comparison), None, lambda text: None)
    empty = dataclasses.replace(found, truth=torch.zeros_like(found.truth))
    bodies = {one.title: one.body for one in found.subject.model.task.output.panels(empty, lambda text: None)}
    assert "no label is true in test data" in bodies["Precision and recall"]


# ---------------------------------------------------------------- labels


def test_names_are_shown_as_they_are(labels_page):
    for name in LABELS:
        assert name in labels_page.texts, "in the table, unharmed"
    assert "<b>bold" not in labels_page.source
    assert labels_page.source.count("<script") == 1
    assert "alert(1)</script>" not in labels_page.source


def test_figures_are_those_of_the_runs(labels_page, label_runs):
    results = [json.loads((folder / "result.json").read_text()) for folder in label_runs]
    plain, seal = (
        [100 * r["metrics"]["test"]["f1_tuned"] for r in results if r["method"] == method]
        for method in ("cross-entropy", "seal")
    )
    tiles = [text for text in labels_page.texts if "±" in text][:3]
    means = [float(text.split()[0].replace("−", "-")) for text in tiles]
    expected = [np.mean(seal), np.mean(plain), np.mean(seal) - np.mean(plain)]
    assert means == pytest.approx(expected, abs=0.0051)


def with_goal(run, folder, goal, doubt=None):
    """A copy of a run whose model was trained for a goal."""
    model = load_model(edited(run, folder, goal=goal))
    model.decision = dataclasses.replace(model.decision, goal=goal, doubt=doubt)
    shutil.rmtree(folder / "model")
    model.save(folder / "model")
    return folder


@pytest.mark.parametrize(
    ("goal", "doubt", "title", "metric"),
    [
        ("f1", None, "F1, highest expected", "f1_expected"),
        ("f1", "no better than frequencies", "F1, tuned threshold", "f1_tuned"),
        ("hamming", None, "Hamming loss, tuned threshold (lower is better)", "hamming_loss_tuned"),
    ],
)
def test_the_headline_is_what_the_model_is_judged_by(label_runs, tmp_path, goal, doubt, title, metric):
    run = with_goal(label_runs[2], tmp_path / "run", goal, doubt)
    page = Page(write([run], progress=False))
    figure = json.loads((run / "result.json").read_text())["metrics"]["test"][metric]
    place = page.texts.index(f"test {title}")
    assert page.texts[place - 1] == f"{100 * figure:.2f}"
    assert f"test {title}" in page.values("aria-label")
    assert f"Thresholds were tuned on validation data, for the goal {goal}." in page.text


def test_without_a_goal_thresholds_are_tuned_for_f1(labels_page, masks_page):
    said = "Thresholds were tuned on validation data, for F1 where no goal was stated."
    assert said in labels_page.text
    assert said not in masks_page.text


def test_curves_are_broken_where_a_stage_ends(label_runs, tmp_path):
    run = edited(label_runs[2], tmp_path / "run")
    (epoch, *_) = map(json.loads, (run / "history.jsonl").read_text().splitlines())
    stages = ["one: task net"] * 2 + ["other: <b>"] * 3
    lines = [json.dumps({**epoch, "stage": stage}) for stage in stages]
    (run / "history.jsonl").write_text("\n".join(lines))
    (chart,) = re.findall(
        r'<svg[^>]*aria-label="valid f1".*?</svg>', Page(write([run], progress=False)).source, re.DOTALL
    )
    found = re.findall(r'<polyline points="([^"]*)"[^>]*><title>([^<]*)', chart)
    assert [(len(points.split()), unescape(title)) for points, title in found] == [
        (2, "seal (nce), seed 0, one: task net"),
        (3, "seal (nce), seed 0, other: <b>"),
    ]


def test_sections_of_a_page_about_labels(labels_page):
    headings = ["Comparison", "Learning curves", "What the energy learned", "Labels", "Suspects", "Settings"]
    assert [heading for heading in headings if labels_page.texts.count(heading) >= 2] == headings
    assert "valid f1" in labels_page.texts
    assert "energy: loss" in labels_page.texts
    assert "seal (nce) on mine.csv" in labels_page.texts
    assert labels_page.texts.count("cross-entropy") > 10


def test_a_label_that_never_occurs_has_no_score(labels_page):
    rows = re.findall(r"<tr><td data-value=\"plain\">.*?</tr>", labels_page.source)
    assert len(rows) == 1
    assert rows[0].count("–") >= 1


def test_pixels_are_drawn(tmp_path):
    settings = Settings(epochs=1, task_hidden=8, energy_hidden=8, global_hidden=4, samples=2)
    for data, pictures in (("digits-completion", 3), ("digits-pairs", 1)):
        folder = tmp_path / data
        train(Run(data, "seal", settings=settings, output=folder, device="cpu", progress=False))
        page = Page(write([folder], progress=False))
        assert page.count("img") == 12 * pictures + SUSPECTS
    assert "digit_3" in page.texts


ALONE = {name for name, spec in METHODS.items() if spec.rules} | {
    "cross-entropy",
    "stack",
    "laco",
    "sgm",
    "cglow",
    "crf",
    "structured-tuning",
    "pseudo-labels",
    "mean-teacher",
}  # without an energy to show, or without rules to learn from


@pytest.mark.parametrize("method", sorted(set(METHODS) - ALONE))
def test_every_methods_energy_is_shown(table, tmp_path, method):
    settings = Settings(
        epochs=1, task_hidden=8, energy_hidden=8, global_hidden=4, samples=2, inference_steps=2,
        conditioned=True,
    )  # fmt: skip
    options = {"settings": settings, "labels": LABELS, "device": "cpu", "progress": False}
    train(Run(str(table), method, output=tmp_path, **options))
    page = Page(write([tmp_path], progress=False))
    assert "How one label pulls another" in page.texts
    assert "No examples" not in page.text


def test_labels_of_sentences_are_shown_with_the_texts(texts_page, text_run):
    data = load(text_run.parent / "texts.csv", words="text", labels=["a", "b"])
    assert "No examples" not in texts_page.text
    assert "How one label pulls another" in texts_page.texts
    texts = [" ".join(tokens) for tokens in data.test.source.tokens]
    assert {len(text.split()) > 80 for text in texts} == {True, False}
    start = texts_page.texts.index("test row 0")
    for number, text in enumerate(texts):
        place = texts_page.texts.index(f"test row {number}", start)
        words = text.split(" ")
        more = f" … ({len(words) - 80} more)" if len(words) > 80 else ""
        assert texts_page.texts[place + 1] == " ".join(words[:80]) + more
    assert texts_page.source.count("<script") == 1


def test_labels_of_images_are_shown_with_the_images(images_page, labelled_image_run):
    data = load(labelled_image_run.parent / "data")
    assert "How one label pulls another" in images_page.texts
    shown = [attributes["src"] for tag, attributes in images_page.tags if tag == "img"]
    examples = shown[-min(12, len(data.test)) :]  # suspects, which are before them, are a part of the rows
    assert len(examples) < len(shown) <= 2 * len(examples)
    picture = Image.open(io.BytesIO(base64.b64decode(examples[0].removeprefix("data:image/png;base64,"))))
    expected = (data.test.source.images[0].transpose(1, 2, 0) * 255).round()
    np.testing.assert_array_equal(np.asarray(picture), expected)


def test_words_of_sparse_rows_are_named(tmp_path):
    random = np.random.default_rng(0)
    lines = ["60 40 2"]
    for _ in range(60):
        columns = np.sort(random.choice(40, 3, replace=False))
        lines.append(f"{int(columns[0] > 9)} " + " ".join(f"{column}:1.5" for column in columns))
    (tmp_path / "words.txt").write_text("\n".join(lines) + "\n")
    settings = Settings(epochs=1, task_hidden=8, energy_hidden=8, global_hidden=4, samples=2)
    options = {"settings": settings, "device": "cpu", "progress": False}
    train(Run(str(tmp_path / "words.txt"), "seal", output=tmp_path / "run", **options))
    page = Page(write([tmp_path / "run"], progress=False))
    matrix, names = load(tmp_path / "words.txt").test.source, load(tmp_path / "words.txt").task.input.names
    assert matrix.is_sparse
    row = matrix.matrix[[0]].toarray()[0]
    assert ", ".join(names[column] for column in np.flatnonzero(row)) in page.texts


def test_the_energy_is_asked_about_the_most_frequent_labels_only(tmp_path, monkeypatch):
    """One backward pass for each of many labels would take minutes; what is done is told."""
    random = np.random.default_rng(0)
    x, shares = random.normal(size=(90, 2)).round(3), np.linspace(0.02, 0.6, 300)
    y = (random.random((90, 300)) < shares).astype(int)
    names = [f"label_{index}" for index in range(300)]
    rows = ["u,v," + ",".join(names)]
    rows += [",".join(map(str, [*a, *b])) for a, b in zip(x, y, strict=True)]
    (tmp_path / "many.csv").write_text("\n".join(rows) + "\n")
    settings = Settings(epochs=1, task_hidden=8, energy_hidden=8, global_hidden=4, samples=2)
    options = {"settings": settings, "labels": names, "device": "cpu", "progress": False}
    train(Run(str(tmp_path / "many.csv"), "seal", output=tmp_path / "run", **options))
    comparison = compare([read_run(tmp_path / "run")])
    told = []
    predictions = collect(comparison, load_models(comparison), None, told.append)
    passes = []
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **kw: passes.append(1) or grad(*args, **kw))
    sections = predictions.subject.model.task.output.panels(predictions, told.append)
    assert len(passes) == 101 + 3, "the gradient, a row for each of 100 labels, and three pulls"
    assert "asking the energy about 100 labels: 99 done" in told
    assert "the 100 most frequent of 300 labels" in sections[0].body
    frequent = set(np.argsort(-predictions.data.train.y.toarray().sum(0), kind="stable")[:100].tolist())
    pairs = re.findall(r"<td>label_(\d+) · label_(\d+)</td>", sections[0].body)
    assert pairs
    assert {int(label) for pair in pairs for label in pair} <= frequent


# ---------------------------------------------------------------- tags


def test_sections_of_a_page_about_tags(tags_page):
    headings = ["What the energy learned", "Spans", "Tags", "Examples"]
    assert [heading for heading in headings if tags_page.texts.count(heading) >= 2] == headings
    assert "Wanted in a row" in tags_page.texts
    assert "Most frequent confusions" in tags_page.texts
    assert "A is infnet-plus (margin); B is cross-entropy." in tags_page.text
    for tag in ("O", *(f"{prefix}-PER" for prefix in "BIES"), "S-<b>bold</b>", "PER", "<b>bold</b>"):
        assert f'<td data-value="{escape(tag)}">' in tags_page.source


def test_words_and_tags_are_shown_as_they_are(tags_page):
    assert "<script>alert(2)</script>" in tags_page.texts
    assert "Ann&lt;" in tags_page.texts
    assert "<b>bold</b>" in tags_page.texts
    assert "<b>bold" not in tags_page.source
    assert tags_page.source.count("<script") == 1


def test_sentences_are_running_text_with_what_is_wrong_marked(tags_page, tag_runs):
    model, data = load_model(tag_runs[0]), load(tag_runs[0].parent / "names")
    other = load_model(tag_runs[1])
    names = model.label_names
    predicted = [
        [names[n] for n in one.probabilities(data.test)[0][5].argmax(-1)[: len(data.test.tokens[5])].tolist()]
        for one in (model, other)
    ]
    rows = [place for place, text in enumerate(tags_page.texts) if text.startswith("test row ")]
    start = tags_page.texts.index("test row 5")
    end = rows[rows.index(start) + 1]
    words, truth = data.test.tokens[5], data.test.tags[5]
    wrong = [sum(a != b for a, b in zip(mine, truth, strict=True)) for mine in predicted]
    expected = [f"wrong: A {wrong[0]}, B {wrong[1]} of {len(words)}"]
    for word, true, *mine in zip(words, truth, *predicted, strict=True):
        expected.append(word)
        agreed = all(tag == true for tag in mine)
        if not (agreed and true == "O"):
            expected.append(true)
        if not agreed:
            said = zip("AB", mine, strict=True)
            expected += [f"{who} ✓" if tag == true else f"{who} ✗ {tag}" for who, tag in said]
    assert [text for text in tags_page.texts[start + 1 : end] if text.strip()] == expected


@pytest.mark.parametrize("method", ["crf", "seal", "infnet", "spen"])
def test_tags_that_mark_no_spans(parts_of_speech, tmp_path, method):
    settings = Settings(epochs=1, batch_size=8, task_hidden=6, energy_hidden=6, samples=2, inference_steps=2)
    train(Run(str(parts_of_speech), method, settings=settings, output=tmp_path, device="cpu", progress=False))
    page = Page(write([tmp_path], progress=False))
    assert "What the energy learned" in page.texts
    assert "No examples" not in page.text
    assert "Nothing to show" not in page.text
    assert "Spans" not in page.texts
    assert "-LRB-" in page.texts
    assert "A ✗" not in page.text, "with one model there is nobody to tell apart"


def test_other_training_sentences_under_the_same_name_are_noticed(tag_runs, tmp_path):
    shutil.copytree(tag_runs[0].parent / "names", tmp_path / "names")
    shutil.copytree(tag_runs[0], tmp_path / "run")
    with (tmp_path / "names" / "train.conll").open("a", encoding="utf-8") as stream:
        stream.write("\nOslo I-NEW\nran O\n")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    result["source"]["data"] = str(tmp_path / "names")
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    page = Page(write([tmp_path / "run"], progress=False))
    assert "the tag 'S-NEW' is none of those known" in page.text
    assert "Examples" in page.texts


def test_figures_of_a_tag_are_those_of_its_seeds(tags_page, tag_runs):
    data = load(tag_runs[0].parent / "names")
    scores = []
    for folder in tag_runs[1:]:
        model = load_model(folder)
        relaxed, truth = model.probabilities(data.test)
        place = model.label_names.index("S-PER")
        scores.append(100 * float(tag_scores(model.decoder()(relaxed), truth).f1[place]))
    row = re.search(r"<tr><td data-value=\"S-PER\">.*?</tr>", tags_page.source)[0]
    values = re.findall(r"data-value=\"([^\"]*)\"", row)
    assert float(values[5]) == pytest.approx(np.mean(scores), abs=0.001)
    assert float(values[6]) == pytest.approx(float(values[4]) - np.mean(scores), abs=0.001)


# ---------------------------------------------------------------- masks


def test_masks_are_images(masks_page):
    assert masks_page.count("img") == 5 * 5, "five images, each with truth, two models and the pull"
    assert "energy’s pull" in masks_page.texts
    assert "% of the wrong pixels towards the truth" in masks_page.text


# ---------------------------------------------------------------- other kinds


def test_a_kind_without_panels_has_figures_curves_and_settings(label_runs, tmp_path, monkeypatch):
    monkeypatch.setattr(Labels, "panels", Output.panels)
    page = Page(write(label_runs, tmp_path / "page.html", progress=False))
    headings = [heading for heading in ("Comparison", "Learning curves", "Settings") if heading in page.texts]
    assert headings == ["Comparison", "Learning curves", "Settings"]
    assert "Examples" not in page.texts
    assert "No examples" not in page.text


def test_metrics_are_titled_where_they_are_defined(labels_page):
    assert "Hamming loss (lower is better)" in labels_page.texts
    assert "F1, tuned threshold" in labels_page.texts
    rows = re.findall(r"<tr>.*?</tr>", section(labels_page, "Comparison"))
    rows = [re.sub("<.*?>", "|", row) for row in rows]
    (threshold,) = [row for row in rows if row.startswith("||threshold|")]
    assert threshold.endswith("||||"), "one cannot be good at a threshold, so that it has no difference"


# ---------------------------------------------------------------- what is in memory


@pytest.mark.parametrize("fixture", ["label_runs", "mask_runs", "tag_runs"])
def test_what_is_fresh_is_neither_read_nor_loaded(request, fixture, tmp_path, monkeypatch):
    folder = request.getfixturevalue(fixture)[-1 if fixture == "label_runs" else 0]
    expected = Page(write([folder], tmp_path / "read.html", progress=False))
    source = json.loads((folder / "result.json").read_text())["source"]
    data = load(source["data"], labels=source["labels"])
    files = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
    known = Model.from_files(files), data
    for name in ("load", "load_model", "load_energy"):
        monkeypatch.delattr(evidence, name)
    monkeypatch.chdir(folder.parent)
    page = Page(write([folder], tmp_path / "fresh.html", progress=False, fresh={Path(folder.name): known}))
    assert page.source == expected.source


def test_data_of_the_same_content_are_not_measured_again(label_runs, tmp_path, monkeypatch):
    """Which takes longest where labels are many."""
    monkeypatch.delattr(Labels, "meter")
    monkeypatch.delattr(Output, "meter")
    page = Page(write(label_runs, tmp_path / "page.html", progress=False))
    assert "Examples" in page.texts


def test_fresh_runs_are_compared_with_others(label_runs, tmp_path):
    """Data in memory will do for all of them, and only the others are measured again."""
    source = json.loads((label_runs[0] / "result.json").read_text())["source"]
    data = load(source["data"], labels=source["labels"])
    expected = Page(write(label_runs, tmp_path / "read.html", progress=False))
    fresh = {label_runs[3]: (load_model(label_runs[3]), data)}
    page = Page(write(label_runs, tmp_path / "fresh.html", progress=False, fresh=fresh))
    assert page.source == expected.source
    few = Loaded(data.name, data.description, data.train, data.valid, data.test.take([0, 1]), data.task, "")
    page = Page(
        write(
            label_runs,
            tmp_path / "few.html",
            progress=False,
            fresh={label_runs[3]: (fresh[label_runs[3]][0], few)},
        )
    )
    assert "are not those of the run" in page.text


# ---------------------------------------------------------------- what is missing


def test_without_data_the_page_says_so_and_shows_the_rest(label_runs, table, tmp_path):
    """Data that has moved is found again in the data directory."""
    moved = tmp_path / "moved"
    moved.mkdir()
    run = tmp_path / "run"
    shutil.copytree(label_runs[2], run)
    result = json.loads((run / "result.json").read_text())
    result["source"]["data"] = "/nowhere/mine.csv"
    (run / "result.json").write_text(json.dumps(result))
    page = Page(write([run], progress=False))
    assert "No examples" in page.text
    assert "/nowhere/mine.csv" in page.text
    assert "valid f1" in page.texts
    assert "Labels" not in page.texts
    shutil.copy(table, moved / "mine.csv")
    page = Page(write([run], data_dir=moved, progress=False))
    assert "Labels" in page.texts


def test_without_a_model_the_page_says_so(label_runs, tmp_path):
    shutil.copytree(label_runs[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    (tmp_path / "run" / "history.jsonl").unlink()
    page = Page(write([tmp_path / "run"], progress=False))
    assert "no model here" in page.text
    assert "No run has a history." in page.texts


def test_without_an_energy_the_page_says_so(label_runs, mask_runs, tag_runs, tmp_path):
    for folder in (label_runs[2], mask_runs[0], tag_runs[0]):
        shutil.copytree(folder, tmp_path / folder.name, dirs_exist_ok=True)
        (tmp_path / folder.name / "model" / "energy.safetensors").unlink()
        page = Page(write([tmp_path / folder.name], progress=False))
        assert "the energy was not kept" in page.text
        assert "Examples" in page.texts
    page = Page(write([label_runs[0]], tmp_path / "plain.html", progress=False))
    assert "cross-entropy trains without an energy" in page.text


def test_other_data_under_the_same_name_is_noticed(label_runs, table, tmp_path):
    shutil.copytree(label_runs[2], tmp_path / "run")
    other = tmp_path / "mine.csv"
    text = table.read_text(encoding="utf-8")
    other.write_text(text.replace("a,b,c", "a,b,d", 1), encoding="utf-8")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    result["source"]["data"] = str(other)
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    page = Page(write([tmp_path / "run"], progress=False))
    assert "is not what the model was trained on" in page.text


def test_a_pipe_is_not_waited_for(label_runs, tmp_path):
    """Nobody may ever write into it again."""
    shutil.copytree(label_runs[2], tmp_path / "run")
    os.mkfifo(tmp_path / "mine.csv")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    result["source"]["data"] = str(tmp_path / "mine.csv")
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    written = []
    thread = threading.Thread(
        target=lambda: written.append(write([tmp_path / "run"], progress=False)), daemon=True
    )
    thread.start()
    thread.join(timeout=30)
    assert "is a pipe" in Page(written[0]).text


def test_other_rows_under_the_same_name_are_noticed(label_runs, table, tmp_path):
    shutil.copytree(label_runs[2], tmp_path / "run")
    heading, *lines = table.read_text(encoding="utf-8").splitlines()
    (tmp_path / "mine.csv").write_text("\n".join([heading, *lines[:70]]) + "\n", encoding="utf-8")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    result["source"]["data"] = str(tmp_path / "mine.csv")
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    page = Page(write([tmp_path / "run"], progress=False))
    assert re.search(r"the data found as mine\.csv are not those of the run: .* now it has", page.text)
