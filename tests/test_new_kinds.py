"""Kinds of output and of input that Lossnet does not have: those of docs/extend.md, as a module of a user's.

Rankings of items, and clouds of points, go wherever the kinds that come with Lossnet go.
"""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

import lossnet
from lossnet import report
from lossnet.data import DataError, Examples, FeatureTable, LabelTable, TagSet
from lossnet.inputs import Input
from lossnet.loading import Loaded
from lossnet.outputs import Output, Predicted, Tags
from lossnet.serve import create_app
from lossnet.task import Task

PAGE = Path(__file__).parents[1] / "docs" / "extend.md"
HEAD = """
import torch
from torch import Tensor
from torch.nn.functional import softplus
from lossnet.energies import Sum, Term
from lossnet.nets import MLP, linear
"""
METHODS = ["cross-entropy", "seal"]
SETTINGS = lossnet.Settings(epochs=12, task_lr=1e-2, task_hidden=32, energy_hidden=16, samples=4)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """The page's definitions as a module that can be imported, without the runs that it shows."""
    folder = tmp_path_factory.mktemp("module")
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", page[page.index("## A kind of output") :])
    definitions = [block for block in blocks if "lossnet.train(" not in block]
    (folder / "kinds_of_mine.py").write_text("\n\n".join([HEAD, *definitions]), encoding="utf-8")
    inputs, outputs = dict(Input.kinds), dict(Output.kinds)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("kinds_of_mine")
    sys.path.remove(str(folder))
    for known, before in ((Input.kinds, inputs), (Output.kinds, outputs)):
        known.clear()
        known.update(before)


def rankings(kinds):
    """Four numbers and their ranks: the smallest comes first."""
    x = np.random.default_rng(0).normal(size=(400, 4)).astype("float32")
    return Examples(FeatureTable(x), kinds.Orders(x.argsort(1).argsort(1)))


def clouds(kinds):
    """Points around one of four centres, and whether that is on the right and on top."""
    random = np.random.default_rng(0)
    points = [random.normal(size=(random.integers(3, 9), 2)) + random.choice([-1, 1], 2) for _ in range(400)]
    return Examples(
        kinds.Clouds(points), LabelTable([cloud.mean(0) > 0 for cloud in points], ["right", "top"])
    )


def split(examples):
    return Loaded.from_parts(*(examples.take(rows) for rows in np.split(np.arange(400), [240, 320])))


#: data, the metric and the least it should be, and instances as JSON
CASES = {
    "rankings": (rankings, "placed", 0.6, [[0.5, -1.0, 2.0, 0.0], [1, 0.3, -0.5, -2]]),
    "clouds": (clouds, "f1", 0.9, [[[2, -1], [1, -2], [3, -2]], [[1, 2]]]),
}


@pytest.fixture(scope="module", params=[(case, method) for case in CASES for method in METHODS], ids="-".join)
def trained(request, kinds, tmp_path_factory):
    """A case, its data, a run's result and its folder."""
    case, method = request.param
    data, folder = split(CASES[case][0](kinds)), tmp_path_factory.mktemp("run")
    run = lossnet.Run(case, method, settings=SETTINGS, output=folder, device="cpu", progress=False)
    return CASES[case], data, lossnet.train(run, data=data), folder


def test_a_new_kind_is_learned(trained):
    (_, metric, least, _), _, result, _ = trained
    assert result["metrics"]["test"][metric] > least


def test_a_new_kind_is_evaluated_from_its_folder(trained):
    _, data, result, folder = trained
    model = lossnet.load(folder)
    assert model.task.matches(data.test)
    measured = model.task.output.meter(model.decision).measure(*model.probabilities(data.test))
    assert measured == pytest.approx(result["metrics"]["test"])


def test_a_new_kind_predicts_in_a_fresh_process(trained, kinds):
    (*_, instances), _, _, folder = trained
    code = "import json, sys, lossnet; model = lossnet.load(sys.argv[1]); "
    code += "print(json.dumps(model.named(json.loads(sys.argv[2]))))"

    def predict(code):
        paths = [str(Path(kinds.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-c", code, str(folder), json.dumps(instances)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    answer = predict(f"import kinds_of_mine; {code}")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == lossnet.load(folder).named(instances)
    assert "import the module that defines it before the model is loaded" in predict(code).stderr


def test_a_new_kind_is_reported(trained, tmp_path):
    (_, metric, _, _), _, _, folder = trained
    page = report.write([folder], tmp_path / "page.html", progress=False).read_text(encoding="utf-8")
    assert "<svg" in page
    named = {one.name: one for one in lossnet.load(folder).task.output.metrics}
    assert named[metric].title in page


def test_a_new_kind_is_served(trained):
    (*_, instances), _, _, folder = trained
    model = lossnet.load(folder)
    with TestClient(create_app(model)) as client:
        answer = client.post("/predict", json={"instances": instances})
        refused = client.post("/predict", json={"instances": ["nonsense"]})
    assert answer.status_code == 200, answer.text
    predictions = answer.json()["predictions"]
    chosen = [one["labels"] if isinstance(one, dict) else one for one in predictions]
    assert chosen == model.named(instances)
    assert refused.status_code == 422
    assert "instances[0]" in refused.text


def test_what_a_kind_does_not_write_to_files_is_said(trained, tmp_path):
    _, data, _, folder = trained
    model = lossnet.load(folder)
    relaxed, _ = model.probabilities(data.test)
    predicted = [Predicted(data.test.source, relaxed)]
    if model.task.output.kind == "labels":
        model.task.output.write(predicted, model.decoder(), tmp_path / "out.csv")
        assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + len(data.test)
    else:
        with pytest.raises(ValueError, match="ranking are not written to files"):
            model.task.output.write(predicted, model.decoder(), tmp_path / "out.csv")
        assert not (tmp_path / "out.csv").exists()


def test_a_new_kind_goes_with_whatever_has_its_features(kinds):
    assert Task(kinds.Points(), kinds.Ranking(4)).title == "rankings from clouds of points"
    with pytest.raises(
        DataError, match="features of each position, and clouds of points have them of each inst"
    ):
        Task(kinds.Points(), Tags(TagSet(("N", "V"))))
