"""Learning without labels: losses and targets against brute force, the teacher's average, what rows count."""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lossnet.data import Facts, MultiLabelData, WithUnlabelled
from lossnet.energies import (
    Rule,
    TokenFacts,
    ancestors,
    at_most,
    changes_after,
    exactly,
    implies,
    inside,
    never_begins,
    occurs,
    once,
    rule,
    suggests,
    sums_to,
)
from lossnet.inference import LocalSearch
from lossnet.methods import CrossEntropy, MeanTeacher, PseudoLabels, Rules
from lossnet.nets import MLP
from lossnet.settings import Settings
from lossnet.spaces import Batch, Mask, MultiLabel, Prediction, Tags
from lossnet.training import Trainer
from lossnet.training.engines import Processes

LABELS, INPUTS = 5, 3
SPACE = MultiLabel(LABELS)
QUIET = Settings(input_noise=0.0, ramp_up=0, samples=4000)
SETS = [torch.tensor(y, dtype=torch.float64) for y in itertools.product((0.0, 1.0), repeat=LABELS)]


@rule(weight=0.7)
def few(x, y, facts):
    return y.sum(-1) * x.sum(-1, keepdim=True).abs()


RULES = [at_most(3), implies(0, 1, weight=1.5), sums_to(), few]


@pytest.fixture
def task_net():
    torch.manual_seed(0)
    return nn.Linear(INPUTS, LABELS).double()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, INPUTS, generator=generator, dtype=torch.float64)
    return Batch(x, facts=torch.tensor([3.0, 4.0, math.nan, 6.0], dtype=torch.float64))


def energy(rules, x, y, fact):
    """The rules' energy of one set for one instance."""
    return sum(one.at(x[None], fact[None])(y[None, None]).item() for one in rules)


def log_prob(logits, y):
    return sum(
        math.log(1 / (1 + math.exp(-(logit if on else -logit))))
        for logit, on in zip(logits.tolist(), y.tolist(), strict=True)
    )


# ---------------------------------------------------------------- against all label sets


def test_the_semantic_loss_is_minus_the_log_of_a_sum_over_all_sets(task_net, batch):
    method = Rules(task_net, SPACE, RULES, "semantic", settings=QUIET)
    assert method.listed is not None
    logits = task_net(batch.x)
    for row, loss in enumerate(method.unlabelled_loss(batch)):
        total = sum(
            math.exp(log_prob(logits[row], y) - energy(RULES, batch.x[row], y, batch.facts[row]))
            for y in SETS
        )
        assert loss.item() == pytest.approx(-math.log(total), abs=1e-10)


@pytest.mark.parametrize("power", [1.0, 0.3])
def test_the_target_is_the_mean_of_the_corrected_teacher(task_net, batch, power):
    settings = Settings(teacher_power=power)
    method = Rules(task_net, SPACE, RULES, settings=settings)
    target = method.target(method.prediction(batch), batch)
    logits = task_net(batch.x)
    for row in range(4):
        weights = [
            math.exp(power * log_prob(logits[row], y) - energy(RULES, batch.x[row], y, batch.facts[row]))
            for y in SETS
        ]
        wanted = sum(w * y for w, y in zip(weights, SETS, strict=True)) / sum(weights)
        torch.testing.assert_close(target[row], wanted)


def test_hard_rules_give_their_probability_and_a_known_answer():
    """Two labels of five that add up to 7: only {3, 4} do."""
    method = Rules(nn.Linear(INPUTS, LABELS), SPACE, [exactly(2), sums_to()], "semantic", settings=QUIET)
    nn.init.zeros_(method.student.weight)
    nn.init.zeros_(method.student.bias)
    batch = Batch(torch.ones(1, INPUTS), facts=torch.tensor([7.0]))
    assert method.unlabelled_loss(batch).item() == pytest.approx(LABELS * math.log(2))
    target = method.target(Prediction(SPACE, torch.zeros(1, LABELS)), batch)
    torch.testing.assert_close(target, torch.tensor([[0.0, 0.0, 0.0, 1.0, 1.0]]))


@pytest.mark.parametrize("loss", ["semantic", "expectation"])
def test_gradients_are_those_of_finite_differences(task_net, batch, loss):
    method = Rules(task_net, SPACE, RULES, loss, settings=QUIET)
    parameters = tuple(method.student.parameters())

    def of(*values):
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
        return method.unlabelled_loss(batch).sum()

    start = [parameter.detach().clone() for parameter in parameters]
    gradients = torch.autograd.grad(of(*start), parameters)
    for index, parameter in enumerate(start):
        for place in itertools.product(*map(range, parameter.shape)):
            values = []
            for step in (1e-5, -1e-5):
                moved = [each.clone() for each in start]
                moved[index][place] += step
                values.append(of(*moved).item())
            slope = (values[0] - values[1]) / 2e-5
            assert gradients[index][place].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("loss", ["semantic", "expectation"])
def test_samples_stand_for_sets_that_are_too_many(task_net, batch, loss):
    rules = [implies(0, 1, weight=1.5), few]
    exact = Rules(task_net, SPACE, rules, loss, settings=QUIET)
    sampled = Rules(copy.deepcopy(exact.student), SPACE, rules, loss, settings=QUIET, most=3)
    assert sampled.listed is None
    torch.manual_seed(0)
    if loss == "semantic":
        given = [
            torch.autograd.grad(m.unlabelled_loss(batch).sum(), m.student.weight) for m in (sampled, exact)
        ]
        torch.testing.assert_close(*given, atol=0.05, rtol=0.05)
        torch.testing.assert_close(
            *(m.unlabelled_loss(batch) for m in (sampled, exact)), atol=0.05, rtol=0.05
        )
    else:
        targets = (m.target(m.prediction(batch), batch) for m in (sampled, exact))
        torch.testing.assert_close(*targets, atol=0.04, rtol=0)


def test_an_instance_that_no_candidate_fits_teaches_as_without_rules():
    facts = torch.tensor([7.0, 99.0])
    method = Rules(MLP(INPUTS, 6, 1, LABELS), SPACE, [exactly(2), sums_to()], settings=QUIET)
    batch = Batch(torch.randn(2, INPUTS), facts=facts)
    target = method.target(method.prediction(batch), batch)
    assert torch.isfinite(target).all()
    pairs = Rules(method.task_net, SPACE, [exactly(2)], settings=QUIET)
    torch.testing.assert_close(target[1], pairs.target(pairs.prediction(batch), batch)[1])


def test_whole_outputs_of_tags_are_searched_for():
    """A rule about neither tokens nor neighbours: the best output is the target, padding stays empty."""

    @rule(weight=math.inf)
    def first_is_one(x, y, facts):
        return 1 - y[:, :, 0, 1]

    method = Rules(nn.Linear(2, 3), Tags(3), [first_is_one], settings=Settings(samples=500))
    batch = Batch(torch.randn(2, 4, 2), mask=torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]]))
    target = method.target(method.prediction(batch), batch)
    torch.testing.assert_close(target[:, 0], torch.tensor([[0.0, 1.0, 0.0]] * 2))
    torch.testing.assert_close(target.sum(-1), batch.mask)


TAGGED = Tags(3)
FACTS = {"tokens": TokenFacts((("pp", ".", "So"), ("So", ",")), ("x", "y", "z"))}
OF_CHAIN = [suggests("So", "x", weight=1.3), changes_after(weight=2.0)]


def sequences(length):
    for tags in itertools.product(range(3), repeat=length):
        yield functional.one_hot(torch.tensor(tags), 3).double()


@pytest.fixture
def sentences():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    return nn.Linear(4, 3).double(), Batch(x, mask=torch.tensor([[1.0, 1, 1], [1, 1, 0]]), facts=FACTS)


def weighed(method, rules, batch, row, power):
    """All sequences of a row, and the logarithm of what each weighs in ``q``, by loops."""
    logits, length = method.task_net(batch.x)[row].log_softmax(-1), int(batch.mask[row].sum())
    tokens = batch.facts["tokens"]
    facts = {"tokens": TokenFacts(tokens.texts[row : row + 1], tokens.tags)}
    for y in sequences(length):
        energy = sum(one.at(None, facts)(y[None, None]).item() for one in rules)
        yield y, power * (logits[:length] * y).sum().item() - energy


@pytest.mark.parametrize("power", [1.0, 0.1])
def test_the_target_of_tags_under_rules_of_a_chain_is_their_mean(sentences, power):
    net, batch = sentences
    method = Rules(net, TAGGED, OF_CHAIN, settings=Settings(teacher_power=power))
    target = method.target(method.prediction(batch), batch)
    for row in range(2):
        # P̄^α is of independent tokens, so that its constant does not matter
        pairs = list(weighed(method, OF_CHAIN, batch, row, power))
        total = sum(math.exp(weight) for _, weight in pairs)
        mean = sum(math.exp(weight) / total * y for y, weight in pairs)
        torch.testing.assert_close(target[row, : len(mean)], mean)
    assert not target[1, 2].any()


def test_the_target_of_tags_under_other_rules_is_the_best_output(sentences):
    net, batch = sentences
    signs = {"tokens": TokenFacts(((",", ".", ";"), (".", ",")), ("x", "y", "z"))}  # each its own chunk
    batch = batch._replace(facts=signs)
    rules = [suggests(",", "x"), never_begins(weight=0.2), once(weight=0.9), occurs("z", weight=3.0)]
    method = Rules(net, TAGGED, rules, settings=Settings(teacher_power=0.5), search=LocalSearch(40, 64))
    torch.manual_seed(0)
    target = method.target(method.prediction(batch), batch)
    for row in range(2):
        best, _ = max(weighed(method, rules, batch, row, 0.5), key=lambda pair: pair[1])
        assert torch.equal(target[row, : len(best)], best)


def test_tags_that_no_output_fits_teach_as_without_rules(sentences):
    net, batch = sentences
    method = Rules(net, TAGGED, [rule(weight=math.inf)(lambda x, y, facts: torch.ones(y.shape[:2]))])
    prediction = method.prediction(batch)
    torch.testing.assert_close(method.target(prediction, batch), prediction.relaxed)


# ---------------------------------------------------------------- teacher and student


def test_the_teacher_is_the_exponential_average_of_the_student(make_data):
    settings = Settings(teacher_decay=0.75)
    method = MeanTeacher(MLP(6, 8, 1, 4), MultiLabel(4), settings=settings)
    data = WithUnlabelled(make_data(16), make_data(16, seed=1).without_target())
    seen = []

    def watched(batch, original=method.updates):
        for update in original(batch):
            yield update
            seen.append(copy.deepcopy(method.student.state_dict()))  # the step has been taken

    method.updates = watched
    Trainer(method, max_epochs=2, batch_size=8, progress=False).fit(data, make_data(8, seed=2))
    assert len(seen) == 8
    mean = seen[0]
    for step, weights in enumerate(seen[1:], start=2):
        decay = min(0.75, 1 - 1 / step)
        mean = {name: decay * mean[name] + (1 - decay) * value for name, value in weights.items()}
    for name, value in method.task_net.state_dict().items():
        torch.testing.assert_close(value, mean[name])
    assert not any(parameter.requires_grad for parameter in method.task_net.parameters())


def test_the_teacher_predicts_and_the_student_is_trained(make_data):
    method = PseudoLabels(MLP(6, 8, 1, 4, dropout=0.5), MultiLabel(4))
    modes = []

    def watched(batch, original=method.updates):
        modes.append((method.student.training, method.task_net.training))
        yield from original(batch)

    method.updates = watched
    data = WithUnlabelled(make_data(16), make_data(16, seed=1).without_target())
    Trainer(method, max_epochs=1, batch_size=32, progress=False).fit(data, make_data(8, seed=2))
    assert modes == [(True, False)]
    assert method.predictors == ("task_net",)


def test_the_weight_of_what_has_no_labels_grows():
    settings = Settings(unlabelled_weight=3.0, ramp_up=4, input_noise=0.0)
    method = MeanTeacher(nn.Linear(INPUTS, LABELS), SPACE, settings=settings)
    x, y = torch.randn(2, INPUTS), torch.ones(2, LABELS)
    batch = Batch(x, y, unlabelled=Batch(torch.randn(6, INPUTS)))
    alone = CrossEntropy(method.student, SPACE)
    for reached in (0.0, 0.25, 0.5, 0.75, 1.0, 1.0):
        (other,) = (update.loss for update in alone.updates(batch))
        own = method.unlabelled_loss(batch.unlabelled).mean()
        (update,) = method.updates(batch)
        torch.testing.assert_close(update.loss, other + 3 * reached * own)
        torch.testing.assert_close(update.measured["unlabelled"], own)


def test_noise_reaches_the_student_only():
    method = MeanTeacher(nn.Linear(INPUTS, LABELS), SPACE, settings=Settings(input_noise=2.0))
    batch = Batch(torch.zeros(500, INPUTS))
    seen = []
    method.student.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    method.task_net.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    method.unlabelled_loss(batch)
    teachers, students = seen
    assert torch.equal(teachers, batch.x)
    assert students.std().item() == pytest.approx(2.0, rel=0.1)
    whole = Batch(torch.zeros(4, INPUTS, dtype=torch.long))
    assert method.disturbed is not None
    method.student = nn.Embedding(3, LABELS)
    assert method.disturbed(whole).logits.shape == (4, INPUTS, LABELS), "row numbers get no noise"


def test_targets():
    space, logits = MultiLabel(3), torch.tensor([[0.3, -1.0, 2.0]])
    net = nn.Linear(INPUTS, 3)
    torch.testing.assert_close(
        MeanTeacher(net, space).target(Prediction(space, logits), None), logits.sigmoid()
    )
    wanted = torch.tensor([[1.0, 0.0, 1.0]])
    assert torch.equal(PseudoLabels(net, space).target(Prediction(space, logits), None), wanted)


# ---------------------------------------------------------------- a problem that only the rule solves


@pytest.mark.parametrize("loss", ["expectation", "semantic"])
def test_totals_teach_what_two_labels_cannot(loss):
    """Label ``i`` is true where input ``i`` is large; a total tells pairs apart."""
    random = np.random.default_rng(0)
    values = [1.0, 2.0, 4.0, 8.0]

    def drawn(rows):
        y = np.zeros((rows, 4))
        for row in y:
            row[random.choice(4, 2, replace=False)] = 1
        return y + 0.15 * random.normal(size=y.shape), y

    (x, y), (test_x, test_y) = drawn(120), drawn(200)
    known = MultiLabelData.from_arrays(x[:2], y[:2])
    others = MultiLabelData.from_arrays(x[2:], y[2:]).with_facts(Facts(y[2:] @ values)).without_target()
    exact = {}
    for rules in ([], [exactly(2), sums_to(values)]):
        torch.manual_seed(0)
        settings = Settings(ramp_up=20)
        method = Rules(MLP(4, 16, 1, 4), MultiLabel(4), rules, loss, settings=settings)
        trainer = Trainer(method, lr=0.01, max_epochs=20, patience=99, batch_size=16, progress=False)
        trainer.fit(WithUnlabelled(known, others), known)
        probabilities = method.predict(torch.from_numpy(test_x).float())
        decoded = (probabilities > 0.5).double()
        exact[len(rules)] = (decoded == torch.from_numpy(test_y)).all(1).double().mean().item()
    assert exact[2] > 0.9
    assert exact[0] < 0.6


def test_several_processes_are_refused():
    batch = Batch(torch.zeros(4, 2), torch.ones(4, 2), unlabelled=Batch(torch.zeros(4, 2)))
    with pytest.raises(ValueError, match="train in one process"), Processes(rank=0, count=2).share(batch):
        pass


def test_replicas_are_refused():
    method = MeanTeacher(nn.Linear(INPUTS, LABELS), SPACE)
    assert method.stacking_blocker() == "MeanTeacher has no stacked form"
    assert Rules(nn.Linear(INPUTS, LABELS), SPACE).stacking_blocker() == "Rules has no stacked form"


@pytest.mark.parametrize("power", [1.0, 0.3])
def test_a_taxonomy_is_summed_without_a_list(task_net, batch, power):
    """With ``most`` at 0 no sets are listed; the sums are those over all of them."""
    taxonomy, settings = ancestors({1: 0, 2: 1, 4: 0}), replace(QUIET, teacher_power=power)
    exact = Rules(task_net, SPACE, [taxonomy], settings=settings, most=0)
    named = Rule(taxonomy.penalties, math.inf, labels=taxonomy.labels)  # the same, as any other rule
    every = Rules(task_net, SPACE, [named], settings=settings)
    assert exact.taxonomy is taxonomy
    assert every.taxonomy is None
    assert every.listed is not None
    teacher = exact.prediction(batch)
    torch.testing.assert_close(exact.target(teacher, batch), every.target(teacher, batch))
    both = [
        Rules(task_net, SPACE, [one], "semantic", settings=settings).unlabelled_loss(batch)
        for one in (taxonomy, named)
    ]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("power", [1.0, 0.3])
def test_of_masks_the_target_is_the_mean_under_rules_that_are_sums_over_pixels(power):
    space, pixels = (
        Mask(),
        [torch.tensor(one).reshape(2, 3) for one in itertools.product((0.0, 1.0), repeat=6)],
    )
    rules = [inside(weight=1.5), rule(lambda x, y, facts: y[..., 0].sum(-1))]
    method = Rules(nn.Linear(1, 1), space, rules, settings=replace(QUIET, teacher_power=power))
    logits = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0))
    batch = Batch(torch.zeros(2, 1), facts=torch.tensor([[0, 0, 1, 2], [0, 1, 2, 3]]))
    every = torch.stack(pixels).expand(2, -1, -1, -1)
    energy = sum(one.at(batch.x, batch.facts)(every) for one in rules)
    posterior = (power * (every * logits.unsqueeze(1)).sum((2, 3)) - energy).softmax(1)
    wanted = (posterior[..., None, None] * every).sum(1)
    torch.testing.assert_close(method.target(Prediction(space, logits), batch), wanted)
    hard = Rules(nn.Linear(1, 1), space, [inside()], settings=replace(QUIET, teacher_power=power))
    target = hard.target(Prediction(space, logits), batch)
    assert target[0, 1].max() < 1e-6
    torch.testing.assert_close(target[1, :, 1:], (power * logits[1, :, 1:]).sigmoid())
