"""Methods on tag sequences: formulas written out again, and every loss on padded sentences."""

import copy
import itertools
import re

import pytest
import torch
from torch import nn

from lossnet.energies import Chain, Sum, TagLM
from lossnet.inference import GradientInference
from lossnet.losses import CD, NCE, Margin, Perceptron, Ranking, Regression, RegressionS, TaskLoss
from lossnet.methods import (
    CRF,
    DVN,
    SEAL,
    SPEN,
    CrossEntropy,
    Implicit,
    InfNet,
    InfNetPlus,
    NCEEnergy,
    SEALStatic,
    Separated,
    Shared,
    Stacked,
)
from lossnet.nets import BiLSTM, Tagger, WordVectors
from lossnet.scores import Accuracy, TokenCost
from lossnet.spaces import Batch, MultiLabel, Tags
from lossnet.training import Trainer

TAGS, WORDS = 3, 9
COST = TokenCost()
SPACE = Tags(TAGS)
LENGTHS = (4, 2, 3, 1)


def tagger(seed=2, hidden=3):
    torch.manual_seed(seed)
    return Tagger(BiLSTM(WordVectors(torch.randn(WORDS, 4), tuned=True), hidden), TAGS).double()


def chain_energy(seed=1, *more, hidden=3, tags=TAGS):
    torch.manual_seed(seed)
    encoder = BiLSTM(WordVectors(torch.randn(WORDS, 4)), hidden)
    chain = Chain(encoder.width, tags)
    nn.init.normal_(chain.transitions)
    return Sum(encoder, chain, *more).double()


def batch_of(lengths=LENGTHS, seed=3, dtype=torch.float64):
    """A word's tag is the last of three for all words after a certain one, else a function of the word."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    words = torch.randint(1, WORDS, (len(lengths), max(lengths)), generator=generator) * mask
    tags = torch.where(words.roll(1, 1) == 1, TAGS - 1, words % TAGS)
    y = nn.functional.one_hot(tags, TAGS) * mask.unsqueeze(-1)
    return Batch(words.unsqueeze(-1), y.to(dtype), mask.to(dtype))


@pytest.fixture
def energy():
    return chain_energy()


@pytest.fixture
def task_net():
    return tagger()


@pytest.fixture
def batch():
    return batch_of()


# ---------------------------------------------------------------- the formulas, sentence by sentence


def relaxed_of(logits, batch):
    return [row[: int(m.sum())].softmax(-1) for row, m in zip(logits, batch.mask, strict=True)]


def truths(batch):
    return [row[: int(m.sum())] for row, m in zip(batch.y, batch.mask, strict=True)]


def energies_of(energy, batch, outputs):
    """``−(Σ y_tᵀ U b + Σ y_{t−1}ᵀ W y_t)`` of one output per sentence, each sentence alone."""
    found = []
    for row, y in zip(batch.x, outputs, strict=True):
        states, (chain,) = energy.encoder(row[: len(y)].unsqueeze(0)).states[0], energy.terms
        total = sum(y[t] @ (chain.local.weight @ states[t] + chain.local.bias) for t in range(len(y)))
        total = total + sum(y[t - 1] @ chain.transitions @ y[t] for t in range(1, len(y)))
        found.append(-total)
    return torch.stack(found)


def distance_of(outputs, batch):
    return torch.stack([(y - t).abs().sum() for y, t in zip(outputs, truths(batch), strict=True)])


def ce_of(logits, batch):
    losses = []
    for row, y in zip(logits, truths(batch), strict=True):
        losses.append(-sum((y[t] * row[t].log_softmax(-1)).sum() for t in range(len(y))))
    return torch.stack(losses)


def assert_gradients(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def gradients(loss, network):
    return torch.autograd.grad(loss, list(network.parameters()), materialize_grads=True)


# ---------------------------------------------------------------- InfNet


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("margin", [True, False])
def test_infnets_network_with_and_without_truncation(task_net, energy, batch, margin, truncated):
    with torch.no_grad():
        energy.terms[0].local.weight *= -30  # sure enough for a margin that is kept in places
    loss = Margin(COST) if margin else Perceptron(COST)
    method = InfNet(
        task_net, energy, SPACE, loss, TaskLoss(energy_weight=0.7, ce_weight=0.2), truncated=truncated
    )
    _, update = method.stages()[0].updates(batch)
    logits = task_net(batch.x)
    outputs = relaxed_of(logits, batch)
    violation = energies_of(energy, batch, truths(batch)) - energies_of(energy, batch, outputs)
    if margin:
        violation = violation + distance_of(outputs, batch)
    assert (violation > 0).any()
    assert (violation < 0).any(), "nothing would be truncated"
    objective = violation.clamp(min=0) if truncated else violation
    expected = (0.2 * ce_of(logits, batch) - 0.7 * objective).mean()
    assert_gradients(gradients(update.loss, task_net), gradients(expected, task_net))


# ---------------------------------------------------------------- InfNet+


def cost_net_of(name, task_net):
    torch.manual_seed(7)
    made = {
        "separated": lambda: Separated(tagger(5)),
        "shared": lambda: Shared(task_net.head),
        "stacked": lambda: Stacked(SPACE),
    }[name]().double()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def logits_by_hand(name, task_net, cost_net, batch):
    logits = task_net(batch.x)
    if name == "separated":
        return logits, cost_net.net(batch.x)
    if name == "shared":
        states = task_net.encoder(batch.x).states
        return logits, states @ cost_net.head.weight.T + cost_net.head.bias
    both = torch.cat([logits.detach().softmax(-1) * batch.mask.unsqueeze(-1), batch.y], -1)
    return logits, both @ cost_net.change.weight.T + cost_net.change.bias


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("name", ["separated", "shared", "stacked"])
def test_infnet_plus_plays_the_compound_game(task_net, energy, batch, name, truncated):
    cost_net = cost_net_of(name, task_net)
    method = InfNetPlus(
        task_net, cost_net, energy, SPACE, Margin(COST), TaskLoss(energy_weight=0.6, ce_weight=0.3),
        task_steps=2, weight=0.4, truncated=truncated, schedule="grouped",
    )  # fmt: skip
    updates = method.stages()[0].updates(batch)
    test_time, augmented = logits_by_hand(name, task_net, cost_net, batch)
    low = energies_of(energy, batch, truths(batch))
    a, f = relaxed_of(test_time.detach(), batch), relaxed_of(augmented.detach(), batch)
    margin = distance_of(f, batch) - energies_of(energy, batch, f) + low
    perceptron = low - energies_of(energy, batch, a)
    update = next(updates)
    assert update.network == "energy"
    expected = (margin.clamp(min=0) + 0.4 * perceptron.clamp(min=0)).mean()
    assert_gradients(gradients(update.loss, energy), gradients(expected, energy))
    assert float(update.measured["l0"]) == pytest.approx(float(margin.detach().clamp(min=0).mean()))
    assert float(update.measured["l1"]) == pytest.approx(float((margin - low).detach().mean()))

    with torch.no_grad():  # the energy's step comes before the networks'
        for parameter in energy.parameters():
            parameter += 0.1
    for step in range(2):
        test_time, augmented = logits_by_hand(name, task_net, cost_net, batch)
        low = energies_of(energy, batch, truths(batch)).detach()
        a, f = relaxed_of(test_time, batch), relaxed_of(augmented, batch)
        margin = distance_of(f, batch) - energies_of(energy, batch, f) + low
        perceptron = low - energies_of(energy, batch, a)
        if truncated:
            margin, perceptron = margin.clamp(min=0), perceptron.clamp(min=0)
        game = margin + 0.4 * perceptron
        expected = (0.3 * ce_of(test_time, batch) + 0.3 * ce_of(augmented, batch) - 0.6 * game).mean()
        wanted = gradients(expected, nn.ModuleList([task_net, cost_net]))
        first, second = next(updates), next(updates)
        assert (first.network, second.network) == ("task_net", "cost_net")
        assert float(first.loss + second.loss) == pytest.approx(expected.item())
        assert_gradients([*first.gradients, *second.gradients], wanted)
        with torch.no_grad():
            for parameter, gradient in zip(task_net.parameters(), first.gradients, strict=True):
                parameter -= 0.1 * gradient
        assert step == 0 or next(updates, None) is None


def test_the_stacked_network_starts_as_the_task_net_made_surer(batch):
    logits = torch.randn(4, 4, TAGS, dtype=torch.float64)
    found, changed = Stacked(SPACE).double().both(lambda x: logits, SPACE, batch)
    assert torch.equal(found, logits)
    surer = changed.softmax(-1)
    assert torch.equal(surer.argmax(-1)[batch.mask > 0], logits.argmax(-1)[batch.mask > 0])
    torch.testing.assert_close(surer[0], (8 * logits[0].softmax(-1)).softmax(-1))
    labels = torch.tensor([[0.5, 0.9, 0.1]], dtype=torch.float64)
    binary = Batch(torch.zeros(1, 2), torch.ones(1, 3, dtype=torch.float64))
    _, changed = Stacked(MultiLabel(3)).double().both(lambda x: labels.logit(), MultiLabel(3), binary)
    torch.testing.assert_close(changed, 8 * (labels - 0.5))


def test_the_stacked_network_leaves_the_task_net_alone(task_net, energy, batch):
    cost_net = cost_net_of("stacked", task_net)
    method = InfNetPlus(task_net, cost_net, energy, SPACE, Margin(COST), TaskLoss(ce_weight=0.0), weight=0.0)
    first, second, _ = method.updates(batch)
    assert not any(gradient.any() for gradient in first.gradients)
    assert any(gradient.any() for gradient in second.gradients)


# ---------------------------------------------------------------- CRF


def test_the_crfs_loss_is_the_likelihood_over_all_sequences(energy, batch):
    (update,) = CRF(energy, SPACE).updates(batch)
    losses = []
    for row, truth in enumerate(truths(batch)):
        alone = Batch(batch.x[row : row + 1, : len(truth)], truth.unsqueeze(0))
        every = [
            nn.functional.one_hot(torch.tensor(path), TAGS).double()
            for path in itertools.product(range(TAGS), repeat=len(truth))
        ]
        energies = torch.cat([energies_of(energy, alone, [y]) for y in every])
        losses.append(energies_of(energy, alone, [truth])[0] + (-energies).logsumexp(0))
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(update.loss, expected)
    assert_gradients(gradients(update.loss, energy), gradients(expected, energy))


def test_the_crf_chooses_epochs_by_the_probabilities_of_tags(energy, batch):
    method = CRF(energy, SPACE)
    (stage,) = method.stages()
    with torch.no_grad():
        found = stage.predict(batch.x, batch.mask)
    for row, truth in enumerate(truths(batch)):
        alone = Batch(batch.x[row : row + 1, : len(truth)], truth.unsqueeze(0))
        every = [
            nn.functional.one_hot(torch.tensor(path), TAGS).double()
            for path in itertools.product(range(TAGS), repeat=len(truth))
        ]
        chances = (-torch.cat([energies_of(energy, alone, [y]) for y in every])).softmax(0)
        expected = sum(chance * y for chance, y in zip(chances, every, strict=True))
        torch.testing.assert_close(found[row, : len(truth)], expected)
        assert not found[row, len(truth) :].any()
    assert set(method.predict(batch.x, batch.mask).unique().tolist()) == {0.0, 1.0}


SCHEMES = {
    "BIOES": (
        ("O", "B-PER", "I-PER", "E-PER", "S-PER"),
        re.compile(r"(O |S-PER |B-PER (I-PER )*E-PER )*"),
    ),
    "IOB2": (
        ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
        re.compile(r"(O |B-PER (I-PER )*|B-LOC (I-LOC )*)*"),
    ),
}


@pytest.mark.parametrize(("names", "legal"), SCHEMES.values(), ids=SCHEMES)
def test_the_crf_leaves_out_what_a_scheme_forbids(names, legal):
    """Loss, its gradients, probabilities and best paths are those of all sequences that are allowed."""

    def sequences(length, among=legal):
        for path in itertools.product(range(len(names)), repeat=length):
            if among.fullmatch("".join(f"{names[tag]} " for tag in path)):
                yield nn.functional.one_hot(torch.tensor(path), len(names)).double()

    energy, batch = chain_energy(tags=len(names)), batch_of()
    space, lengths = Tags(len(names), names), batch.mask.sum(1).int().tolist()
    with torch.no_grad():
        energy.terms[0].local.weight *= 20  # far from uniform
    method = CRF(energy, space)
    # The second sentence begins inside of a span, which the scheme forbids.
    truth = [list(sequences(length))[-2] for length in lengths]
    truth[1] = nn.functional.one_hot(torch.tensor([2, 0]), len(names)).double()
    y = nn.utils.rnn.pad_sequence(truth, batch_first=True)
    (update,) = method.updates(batch._replace(y=y))
    with torch.no_grad():
        chances, best = method.marginals(batch.x, batch.mask), method.predict(batch.x, batch.mask)
    losses = []
    for row, length in enumerate(lengths):
        alone = Batch(batch.x[row : row + 1, :length])
        allowed = list(sequences(length))
        values = torch.cat([energies_of(energy, alone, [one]) for one in allowed])
        assert torch.equal(best[row, :length], allowed[int(values.argmin())])
        expected = torch.einsum("n,ntl->tl", (-values).softmax(0), torch.stack(allowed))
        torch.testing.assert_close(chances[row, :length], expected)
        assert not best[row, length:].any()
        assert not chances[row, length:].any()
        if row == 1:  # compared with all sequences
            every = sequences(length, re.compile(".*"))
            values = torch.cat([energies_of(energy, alone, [one]) for one in every])
        losses.append(energies_of(energy, alone, [truth[row]])[0] + (-values).logsumexp(0))
    expected = torch.stack(losses).mean()
    assert min(losses) > 0
    torch.testing.assert_close(update.loss, expected)
    assert_gradients(gradients(update.loss, energy), gradients(expected, energy))
    free = CRF(energy, Tags(len(names)))
    assert not torch.equal(free.predict(batch.x), best), "nothing would be left out"
    assert not torch.equal(space.decode(free.predict(batch.x)), best), "whole spans afterwards are no better"


def test_the_crf_with_spans_is_finite_in_single_precision():
    """However long a sentence and large the scores; a sentence without an allowed sequence as well."""
    names = SCHEMES["BIOES"][0]
    energy = chain_energy(tags=5).float()
    with torch.no_grad():
        energy.terms[0].local.weight *= 1e4
    batch = batch_of((400, 1), dtype=torch.float32)
    y = nn.functional.one_hot(torch.zeros(2, 400, dtype=torch.long), 5) * batch.mask.unsqueeze(-1)
    for space in (Tags(5, names), Tags(5, ("B-A", "I-A", "B-B", "I-B", "E-B"))):
        method = CRF(energy, space)
        (update,) = method.updates(batch._replace(y=y))
        assert update.loss >= 0
        assert all(one.isfinite().all() for one in gradients(update.loss, energy))
        assert method.marginals(batch.x).isfinite().all()
        assert torch.equal(method.predict(batch.x).sum(-1), batch.mask)
    assert space.constraints().hold(method.predict(batch.x).argmax(-1), batch.mask.bool()).tolist() == [
        True,
        False,
    ]


def test_the_crf_refuses_energies_that_it_cannot_sum():
    with pytest.raises(ValueError, match="one term, a Chain"):
        CRF(chain_energy(1, TagLM(TAGS, 4)), SPACE)


# ---------------------------------------------------------------- training


class Data:
    """Sentences of several lengths that a tagger can learn."""

    def __init__(self, count, seed=0):
        lengths = torch.randint(1, 6, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
        self.whole = batch_of([*lengths, 6], seed, torch.float32)
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def batch(self, indices):
        length = int(self.whole.mask[indices].sum(1).max())
        return Batch(*(part[indices][:, :length] for part in self.whole[:3]))


INFERENCE = GradientInference(steps=5, lr=0.5)
EVERYTHING = (
    lambda: TagLM(TAGS, 4),
    lambda: TagLM(TAGS, 4, backward=True),
    lambda: TagLM(TAGS, 4, words=4),
    lambda: TagLM(TAGS, 4, backward=True, words=4),
)


def global_energy():
    return chain_energy(1, *(make() for make in EVERYTHING)).float()


METHODS = {
    "cross-entropy": lambda: CrossEntropy(tagger().float(), SPACE),
    "crf": lambda: CRF(chain_energy().float(), SPACE),
    "spen": lambda: SPEN(global_energy(), SPACE, Margin(COST), INFERENCE),
    "dvn": lambda: DVN(global_energy(), SPACE, Regression(COST), GradientInference(5, update="gradient")),
    "nce-energy": lambda: NCEEnergy(global_energy(), tagger().float(), SPACE, inference=INFERENCE),
    "infnet": lambda: InfNet(tagger().float(), global_energy(), SPACE, Margin(COST), TaskLoss()),
    "seal-static": lambda: SEALStatic(
        tagger().float(), SPEN(global_energy(), SPACE, Margin(COST), INFERENCE), SPACE
    ),
    **{
        f"infnet-plus {name}": lambda name=name: InfNetPlus(
            net := tagger().float(), cost_net_of(name, net).float(), global_energy(), SPACE, Margin(COST)
        )
        for name in ("separated", "shared", "stacked")
    },
    **{
        f"seal {type(loss).__name__}": lambda loss=loss: SEAL(tagger().float(), global_energy(), SPACE, loss)
        for loss in (
            NCE(3), Ranking(3), CD(3, COST), Margin(COST), Regression(Accuracy()), RegressionS(Accuracy(), 3)
        )
    },
    **{
        f"implicit {type(loss).__name__}": lambda loss=loss: Implicit(
            tagger().float(), global_energy(), SPACE, loss, score=COST, weight=1.0
        )
        for loss in (NCE(3, COST), Margin(COST))
    },
}  # fmt: skip


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_every_method_trains_on_sentences_of_different_lengths(make):
    method = make()
    before = {name: copy.deepcopy(net.state_dict()) for name, net in method.named_children()}
    train, valid = Data(20), Data(8, seed=1)
    trainer = Trainer(method, lr=1e-2, max_epochs=1, batch_size=6, progress=False)
    history = trainer.fit(train, valid)
    assert [entry["stage"] for entry in history] == [stage.name for stage in method.stages()]
    for name, net in method.named_children():
        assert any(not torch.equal(t, before[name][k]) for k, t in net.state_dict().items()), name
    batch = valid.batch(torch.arange(8))
    relaxed = method.predict(batch.x, batch.mask)
    torch.testing.assert_close(relaxed.sum(-1), batch.mask)
    for row in range(3):  # alone or together, a sentence gets the same tags
        length = int(batch.mask[row].sum())
        alone = method.predict(batch.x[row : row + 1, :length], batch.mask[row : row + 1, :length])
        torch.testing.assert_close(relaxed[row, :length], alone[0], rtol=1e-3, atol=1e-4)


LEARNERS = {
    "cross-entropy": lambda net, energy: CrossEntropy(net, SPACE),
    "crf": lambda net, energy: CRF(Sum(energy.encoder, energy.terms[0]), SPACE),
    "infnet": lambda net, energy: InfNet(net, energy, SPACE, Margin(COST)),
    "infnet-plus": lambda net, energy: InfNetPlus(net, Stacked(SPACE), energy, SPACE, Margin(COST)),
    "seal": lambda net, energy: SEAL(net, energy, SPACE, NCE(5)),
    "implicit": lambda net, energy: Implicit(net, energy, SPACE, NCE(5, COST), score=COST),
}


@pytest.mark.parametrize("make", LEARNERS.values(), ids=LEARNERS)
def test_tags_that_depend_on_their_neighbours_are_learned(make):
    method = make(tagger(hidden=12).float(), chain_energy(1, TagLM(TAGS, 4), hidden=12).float())
    train, valid = Data(100), Data(40, seed=1)
    history = Trainer(method, lr=2e-2, max_epochs=8, batch_size=10, progress=False).fit(train, valid)
    assert max(entry["accuracy"] for entry in history) > 0.95


@pytest.mark.parametrize("update", ["mirror", "gradient"])
def test_inference_finds_viterbis_sequence_where_tags_hardly_interact(update, batch):
    energy = chain_energy()
    with torch.no_grad():
        energy.terms[0].transitions *= 0.05
    method = SPEN(energy, SPACE, inference=GradientInference(300, lr=1.0, update=update, start="noise"))
    method.start = lambda x, mask: torch.zeros(*x.shape[:2], TAGS, dtype=torch.float64)
    found = SPACE.decode(method.predict(batch.x, batch.mask))
    assert torch.equal(found, CRF(energy, SPACE).predict(batch.x, batch.mask))


def test_the_implicit_term_of_recurrent_networks_equals_that_of_double_backward(batch, monkeypatch):
    method = Implicit(tagger(), chain_energy(), SPACE, NCE(5, COST), score=COST)
    method.train()
    found = []
    for recurrent in (True, False):
        monkeypatch.setattr("lossnet.methods.implicit.is_recurrent", lambda *_, answer=recurrent: answer)
        torch.manual_seed(1)
        found.append(copy.deepcopy(method).implicit_update(batch))
    difference, exact = found
    for name in ("implicit_norm", "curvature", "residual"):
        torch.testing.assert_close(difference.measured[name], exact.measured[name], rtol=1e-6, atol=0)
    assert difference.measured["residual"] <= 2
    for mine, theirs in zip(difference.gradients, exact.gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)
