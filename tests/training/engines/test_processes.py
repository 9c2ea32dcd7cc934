"""Several processes come to what one process comes to."""

import json
import multiprocessing
import os
import runpy
import signal
import socket
import time
import uuid
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn import functional as F

import lossnet
from lossnet.cli import main
from lossnet.methods import CrossEntropy
from lossnet.nets import layers
from lossnet.ops import Bernoulli
from lossnet.spaces import Batch, Blocks, Mask, MultiLabel, Prediction, Smooth, Tags
from lossnet.training import Checkpoint, Trainer
from lossnet.training.engines import Processes, joined, launched_rank
from lossnet.training.engines.draws import WholeBatchDraws

WORK = runpy.run_path(str(Path(__file__).with_name("shared_work.py")))

# What starts processes is torchrun's own launcher.  Forked, they need not import everything again, but
# autograd does not survive a fork where it has started threads for GPUs.
several = pytest.mark.skipif(torch.cuda.is_available(), reason="forks, which CUDA does not survive")


def launch(function, *arguments, processes=2):
    """What a function returns in each of several processes, as ``torchrun`` would start them."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.05,
        start_method="fork",
    )
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return elastic_launch(config, function)(*arguments)
    finally:
        for number, handler in before.items():  # the launcher leaves its own
            signal.signal(number, handler)


# ---------------------------------------------------------------- the same weights


def assert_same(one, other):
    """Everything in two checkpoints agrees: weights, best weights, optimizers, random numbers, history."""
    first, second = Checkpoint.load(one), Checkpoint.load(other)
    assert first.tensors.keys() == second.tensors.keys()
    for name, tensor in first.tensors.items():
        torch.testing.assert_close(tensor, second.tensors[name], atol=1e-5, rtol=0)
    histories = [file.state["position"]["history"] for file in (first, second)]
    assert len(histories[0]) == len(histories[1])
    for mine, its in zip(*histories, strict=True):
        assert mine["valid"] == pytest.approx(its["valid"])
        for key in ("losses", "gradient_norms", "measured"):
            assert mine[key].keys() == its[key].keys()
            for network, value in mine[key].items():
                assert value == pytest.approx(its[key][network], rel=2e-3, abs=1e-5), (key, network)


@several
def test_several_processes_come_to_the_weights_of_one(tmp_path):
    """All in one test: tests that are spread over workers would each start processes of their own."""
    fit = WORK["fit"]
    for name in WORK["RESUMED"]:
        fit(name, tmp_path / "more" / name, epochs=1)
    refused = launch(WORK["main"], tmp_path)
    assert set(refused) == {0, 1}
    assert all("absent: no checkpoint here" in message for message in refused.values())
    differ = {}
    for name in WORK["CASES"]:
        fit(name, tmp_path / "1" / name)
        differ[name] = difference(tmp_path / "1" / name, tmp_path / "2" / name)
    for name in WORK["RESUMED"]:
        fit(name, tmp_path / "fewer" / name, resume=True)
        for folder in ("fewer", "more"):
            differ[name, folder] = difference(tmp_path / "1" / name, tmp_path / folder / name)
    assert not {name: how for name, how in differ.items() if how}
    for name in ("cross-entropy", "seal", "identity", "neumann"):
        assert Checkpoint.load(tmp_path / "2" / name).state["position"]["steps_taken"] >= 50


def difference(one, other):
    """What `assert_same` says."""
    try:
        assert_same(one, other)
    except AssertionError as error:
        return str(error)
    return None


# ---------------------------------------------------------------- the command line


@pytest.fixture
def command(tmp_path, make_data):
    """A run that takes a moment."""
    data = make_data(60)
    lines = [",".join([*data.feature_names, *data.label_names])]
    for x, y in zip(data.x.round(6).astype(str), data.y.toarray().astype(str), strict=True):
        lines.append(",".join([*x, *y]))
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n")
    arguments = ["train", str(tmp_path / "mine.csv"), "--labels", "label_*", "--method", "seal"]
    arguments += ["--task-hidden", "8", "--energy-hidden", "8", "--global-hidden", "4", "--samples", "4"]
    return [*arguments, "--batch-size", "8", "--epochs", "3", "--quiet", "--device", "cpu"]


def stopped(arguments, at):
    """Runs a command in a process that is asked to end when it makes its ``at``-th batch."""
    from lossnet.data import Examples

    batch, calls = Examples.batch, []

    def counting(data, indices):
        calls.append(len(indices))
        if len(calls) == at and os.environ["RANK"] == "1":
            signal.raise_signal(signal.SIGTERM)
        return batch(data, indices)

    Examples.batch = counting
    return main(arguments), sum(calls)


@several
def test_processes_stop_together_and_one_goes_on(command, tmp_path, capfd):
    assert main([*command, "--output", str(tmp_path / "whole")]) == 0
    again = [*command, "--output", str(tmp_path / "stopped")]
    found = launch(stopped, again, 9)
    assert found[0] == found[1], "all stop at the same batch"
    assert found[0][0] == 130
    said = capfd.readouterr().err
    assert said.count("stopped at epoch 2; progress is saved in") == 1
    assert [path.name for path in (tmp_path / "stopped").iterdir()] == ["checkpoint.safetensors"]
    assert Checkpoint.load(tmp_path / "stopped" / "checkpoint.safetensors").state["position"]["step"] > 0

    assert launch(main, [*again, "--resume"], processes=3) == {0: 0, 1: 0, 2: 0}
    assert capfd.readouterr().out.count("result, model and history are in") == 1
    whole, split = (
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "stopped")
    )
    assert (whole.pop("processes"), split.pop("processes")) == (1, 3)
    for key in ("steps", "epochs", "settings", "seed"):
        assert whole[key] == split[key], key
    for part, metrics in whole["metrics"].items():
        assert metrics == pytest.approx(split["metrics"][part], abs=1e-4)


def failing():
    """One process fails while the other waits for it."""
    with joined() as processes:
        if processes.rank == 1:
            raise OSError("the disk is full")
        processes.any(False)


@several
def test_a_process_that_fails_ends_the_others():
    started = time.monotonic()
    with pytest.raises(ChildFailedError, match=r"the disk is full|Connection"):
        launch(failing)
    assert time.monotonic() - started < 60


# ---------------------------------------------------------------- other launchers


RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")


def start(names, function, *arguments, address=True, processes=2):
    """What a function returns in processes that know of each other from their environment only."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def run(rank):
        os.environ |= dict(zip(names, map(str, (rank, processes, rank)), strict=True))
        os.environ |= meeting if address else {}
        try:
            answers.put((rank, function(*arguments)))
        except Exception as error:
            answers.put((rank, error))

    started = [context.Process(target=run, args=(rank,)) for rank in range(processes)]
    for process in started:
        process.start()
    returned = dict(answers.get() for _ in started)
    for process in started:
        process.join()
    return returned


def fit_joined(name, folder):
    torch.set_num_threads(1)
    with joined() as processes:
        WORK["fit"](name, folder / str(processes.count) / name, processes)
    return processes.count, distributed.is_initialized()


@several
@pytest.mark.parametrize("names", [RANKS, SLURM, OPEN_MPI], ids=lambda names: names[0])
def test_processes_of_any_launcher_come_to_the_weights_of_one(names, tmp_path):
    assert start(names, fit_joined, "identity", tmp_path) == dict.fromkeys((0, 1), (2, False))
    WORK["fit"]("identity", tmp_path / "1" / "identity")
    assert_same(tmp_path / "1" / "identity", tmp_path / "2" / "identity")


@several
def test_a_command_without_torchrun_is_shared_by_processes(command, tmp_path, capfd):
    assert start(RANKS, main, [*command, "--output", str(tmp_path / "two")]) == {0: 0, 1: 0}
    assert capfd.readouterr().out.count("result, model and history are in") == 1
    assert main([*command, "--output", str(tmp_path / "one")]) == 0
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two"))
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["steps"] == two["steps"]
    for part, metrics in one["metrics"].items():
        assert metrics == pytest.approx(two["metrics"][part], abs=1e-4)


def join_a_group(folder):
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    name, *_ = WORK["RESUMED"]
    fit_joined(name, folder)
    return distributed.is_initialized()  # it ends with its process: torch 2.6 may hang in destroying it


@several
def test_a_group_that_is_initialised_is_joined_and_left_alone(tmp_path):
    assert start(RANKS, join_a_group, tmp_path) == {0: True, 1: True}
    assert len(list((tmp_path / "2").iterdir())) == 1


@several
@pytest.mark.parametrize("names", [RANKS, SLURM, OPEN_MPI], ids=lambda names: names[0])
def test_ranks_that_cannot_meet_are_refused(names, tmp_path, command, capfd):
    refused = start(names, main, [*command, "--output", str(tmp_path / "both")], address=False)
    assert refused == {0: 2, 1: 2}
    assert not (tmp_path / "both").exists()
    said = capfd.readouterr().err
    for rank in (0, 1):
        assert f"this is process {rank} of 2, but MASTER_ADDR and MASTER_PORT must say where" in said


def test_ranks_without_a_group_do_not_write_the_same_checkpoint(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    method = CrossEntropy(nn.Linear(2, 2), MultiLabel(2))
    with pytest.raises(ValueError, match=r"process 1 of 2, and each would train .* processes= from"):
        Trainer(method, checkpoint=tmp_path / "checkpoint")
    Trainer(method, checkpoint=tmp_path / "own", processes=Processes())
    Trainer(method)


def test_a_rank_without_a_number_of_processes_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match="RANK=1 and WORLD_SIZE=None do not say"), joined():
        pass


def test_one_process_of_a_launcher_is_alone(monkeypatch):
    for name, value in zip(RANKS, "010", strict=True):
        monkeypatch.setenv(name, value)
    assert launched_rank() is None
    with joined() as processes:
        assert processes == Processes()


def train_on_ray(options):
    torch.set_num_threads(1)
    lossnet.train(lossnet.Run(**options))


@several
def test_two_ray_workers_train_one_model(tmp_path):
    why = "ray is not among the development requirements: install ray[train] to run this"
    ray = pytest.importorskip("ray", reason=why)
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    settings = lossnet.Settings(epochs=2, task_hidden=8)
    options = {"data": "digits-pairs", "method": "cross-entropy", "settings": settings, "progress": False}
    options["device"] = "cpu"
    one = lossnet.train(lossnet.Run(**options))
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        TorchTrainer(
            train_on_ray,
            train_loop_config={**options, "output": str(tmp_path / "two")},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path / "ray")),
        ).fit()
    finally:
        ray.shutdown()
    two = json.loads((tmp_path / "two" / "result.json").read_text())
    assert two["processes"] == 2
    assert two["steps"] == one["steps"]
    assert two["metrics"]["test"] == pytest.approx(one["metrics"]["test"], abs=1e-4)


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize("rows", [1, 2, 5, 12])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_means_of_shares_add_up_to_the_mean(rows, count, weighted):
    losses = torch.rand(rows, dtype=torch.float64)
    weight = torch.rand(rows, dtype=torch.float64) if weighted else None
    batch = Batch(losses, losses, None, weight)
    total, seen = torch.zeros((), dtype=torch.float64), 0
    for rank in range(count):
        with Processes(rank, count).share(batch) as own:
            total += own.mean(own.x)
            assert 1 <= len(own.y) <= -(-rows // count)
            seen += len(own.y) if own.weight.any() else 0
    torch.testing.assert_close(total, batch.mean(losses))
    assert seen == rows


def test_one_process_has_the_whole_batch_as_it_is():
    batch = Batch(torch.ones(3, 2), torch.ones(3, 1))
    with Processes().share(batch) as own:
        assert own is batch


def test_trees_of_inputs_and_weights_of_terms_are_shared_by_rows():
    x = {"ids": torch.arange(10).view(5, 2), "more": [torch.rand(5)]}
    batch = Batch(x, None, None, {"ce": torch.arange(5.0)})
    with Processes(1, 2).share(batch) as own:
        assert own.x["ids"].tolist() == [[4, 5], [6, 7], [8, 9]]
        assert torch.equal(own.x["more"][0], x["more"][0][2:])
        assert own.y is None
        torch.testing.assert_close(own.weight["ce"], torch.tensor([2.0, 3.0, 4.0]) * 0.6)
        torch.testing.assert_close(own.weight["energy"], torch.full((3,), 0.6))


def test_sparse_inputs_are_shared_by_rows():
    dense = torch.tensor([[0.0, 1.0], [0.0, 0.0], [2.0, 3.0], [4.0, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them unfinished
        batch = Batch(dense.to_sparse_csr(), dense)
        for rank in range(3):
            with Processes(rank, 3).share(batch) as own:
                assert own.x.layout == torch.sparse_csr
                assert torch.equal(own.x.to_dense(), own.y)


def test_normalisation_over_a_batch_is_refused():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match=r"^1 normalises over a batch"):
        Processes(0, 2).align(net)
    Processes().align(net)


@pytest.mark.parametrize(
    ("device", "gpus", "message"),
    [("cuda:0", 2, "use --device cuda"), ("cuda", 1, "a machine with 1 GPUs; start 1")],
)
def test_every_process_needs_a_gpu_of_its_own(device, gpus, message, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ValueError, match=message), joined(device):
        pass


# ---------------------------------------------------------------- random numbers


ROWS = 7
LOGITS = torch.linspace(-2, 2, ROWS * 40).view(ROWS, 40)
TOKENS = torch.linspace(-2, 2, ROWS * 50).sin().view(ROWS, 5, 10)
IMAGES = torch.linspace(-2, 2, ROWS * 72).cos().view(ROWS, 8, 9)


def later_candidates(rows):
    noise = torch.zeros(len(LOGITS[rows]), 3, 20)
    noise[:, 1:].normal_(std=2.0)  # in place, on rows that are not next to each other
    return noise


DRAWN = {
    "label sets": lambda rows: MultiLabel(40).sample(LOGITS[rows], 5),
    "batches of label sets": lambda rows: torch.stack(
        list(Prediction(MultiLabel(40), LOGITS[rows]).candidate_batches(LOGITS[rows], 3, 4)), 1
    ),
    "tags": lambda rows: Tags(10).sample(TOKENS[rows], 4),
    "masks": lambda rows: Mask().sample(IMAGES[rows], 4),
    "blocks": lambda rows: Mask(Blocks(3)).sample(IMAGES[rows], 4),
    "smooth": lambda rows: Mask(Smooth(1.5)).sample(IMAGES[rows], 4),
    "perturbed labels": lambda rows: Prediction(MultiLabel(40), LOGITS[rows]).perturb(3, 1.0),
    "perturbed tags": lambda rows: Prediction(Tags(10), TOKENS[rows]).perturb(3, 1.0),
    "perturbed blocks": lambda rows: Prediction(Mask(Blocks(3)), IMAGES[rows]).perturb(3, 1.0),
    "one of several": lambda rows: TOKENS[rows].softmax(-1).flatten(0, 1).multinomial(1).view(-1, 5),
    "starts": lambda rows: torch.zeros_like(TOKENS[rows]).normal_(),
    "later starts": later_candidates,
    "uniform": lambda rows: torch.rand(len(LOGITS[rows]), 3, dtype=torch.float64),
    "uniform in place": lambda rows: torch.zeros_like(LOGITS[rows]).uniform_(-1, 1),
    "like": lambda rows: torch.rand_like(LOGITS[rows]),
    "integers": lambda rows: torch.randint(9, (len(LOGITS[rows]), 2)),
    "bounded integers": lambda rows: torch.randint(3, 9, size=(2 * len(LOGITS[rows]),)).view(-1, 2),
    "coins": lambda rows: torch.zeros_like(LOGITS[rows]).bernoulli_(0.3),
    "coins from bytes": lambda rows: Bernoulli(LOGITS[rows].sigmoid())(3),
    "dropout": lambda rows: nn.Dropout(0.4)(LOGITS[rows]),
    "dropout from bytes": lambda rows: layers.Dropout(0.4)(LOGITS[rows]),
    "dropout in place": lambda rows: nn.Dropout(0.4, inplace=True)(LOGITS[rows].clone()),
    "dropout, turned": lambda rows: F.dropout(TOKENS[rows].transpose(1, 2), 0.3),
    "dropout, expanded": lambda rows: F.dropout(LOGITS[rows].unsqueeze(1).expand(-1, 3, -1), 0.3),
    "channels": lambda rows: nn.Dropout2d(0.4)(TOKENS[rows].unsqueeze(-1)),
    "no dropout": lambda rows: F.dropout(LOGITS[rows], 0.3, training=False),
    "own generator": lambda rows: torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(0))[rows],
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_shares_of_random_numbers_are_those_of_the_whole(draw):
    torch.manual_seed(0)
    whole, after = draw(slice(0, ROWS)), torch.get_rng_state()
    parts = []
    for start, stop in ((0, 1), (1, 3), (3, ROWS)):
        torch.manual_seed(0)
        with WholeBatchDraws(ROWS, start, stop):
            parts.append(draw(slice(start, stop)))
        assert torch.equal(torch.get_rng_state(), after), "processes would draw different numbers from here"
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-6, rtol=1e-6)  # sigmoids round


def test_what_has_no_row_for_each_instance_is_the_same_in_all_shares():
    drawn = []
    for start, stop in ((0, 3), (3, 6)):
        torch.manual_seed(0)
        with WholeBatchDraws(6, start, stop):
            drawn.append([torch.randn(()), torch.randn(5), torch.randint_like(torch.zeros(6), 2)])
    for one, other in zip(*drawn, strict=True):
        assert torch.equal(one, other)


def test_gradients_pass_through_dropout():
    x = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)

    def dropped(x):
        torch.manual_seed(0)
        with WholeBatchDraws(6, 1, 5):
            return F.dropout(x, 0.5) ** 2

    assert torch.autograd.gradgradcheck(dropped, (x,))
