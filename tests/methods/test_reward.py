"""Rules as a reward, and the other systems of UAI Table 4, against formulas and loops in float64."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from lossnet.build import METHODS, build
from lossnet.data import Lexicon, Sentences, TagSet
from lossnet.energies import (
    Chain,
    Sum,
    TokenFacts,
    changes_after,
    exactly,
    never_begins,
    once,
    suggests,
)
from lossnet.inference import GradientInference, LocalSearch
from lossnet.inputs import Words
from lossnet.methods import (
    CorrectedTeacher,
    GeneralizedExpectation,
    RankSPEN,
    RewardDVN,
    RewardSEAL,
    SearchSPEN,
)
from lossnet.methods.reward import Reward
from lossnet.methods.reward_spen import Given, rank_violation
from lossnet.nets import BiLSTM, Tagger, WordVectors
from lossnet.outputs import Tags as TagsKind
from lossnet.own import OwnParts
from lossnet.scores import TokenCost
from lossnet.settings import Settings
from lossnet.spaces import Batch, Prediction, Tags
from lossnet.task import Task

SPACE = Tags(3)
FACTS = {"tokens": TokenFacts((("pp", ".", "So"), ("So", ",")), ("x", "y", "z"))}
MASK = torch.tensor([[1.0, 1, 1], [1, 1, 0]])
RULES = (
    suggests("So", "x", weight=1.3),
    changes_after(weight=2.0),
    never_begins(weight=0.4),
    once(weight=0.9),
)
AT_NET = GradientInference(start="net", lr=1.0)
WORDS = torch.tensor([[[2], [3], [4]], [[4], [5], [0]]])


def tagger():
    return Tagger(BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4), outputs=3)


@pytest.fixture
def energy():
    torch.manual_seed(0)
    encoder = BiLSTM(WordVectors(torch.randn(9, 5)), hidden=4)
    made = Sum(encoder, Chain(encoder.width, tags=3)).double()
    nn.init.normal_(made.terms[0].transitions)
    return made


@pytest.fixture
def batch():
    truth = functional.one_hot(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3).double() * MASK.unsqueeze(2)
    other = Batch(WORDS, mask=MASK, facts=FACTS)
    return Batch(WORDS, truth, MASK, unlabelled=other)


@pytest.fixture
def candidates():
    torch.manual_seed(1)
    return functional.one_hot(torch.randint(3, (2, 6, 3)), 3).double() * MASK[:, None, :, None]


def penalty(rules, row, y):
    """The rules' energy of one sentence's tags."""
    facts = {"tokens": TokenFacts(FACTS["tokens"].texts[row : row + 1], FACTS["tokens"].tags)}
    length = int(MASK[row].sum())
    return sum(rule.at(None, facts)(y[None, None, :length]).item() for rule in rules)


def test_a_reward_is_between_0_and_1_and_falls_with_what_is_broken(energy, batch, candidates):
    method = RewardDVN(energy, SPACE, inference=AT_NET)
    method.rules = RULES
    reward = Reward(method.penalties(batch.unlabelled), scale=2.5)(candidates, batch.y)
    for row in range(2):
        for place in range(6):
            wanted = math.exp(-penalty(RULES, row, candidates[row, place]) / 2.5)
            assert reward[row, place].item() == pytest.approx(wanted)


# ---------------------------------------------------------------- R-SPEN, SG-SPEN


def test_a_rank_violation_is_a_hinge_on_differences(energy, candidates):
    better, worse = candidates[:, :3], candidates[:, 3:]
    of_rules = [[penalty(RULES, row, y) for y in candidates[row]] for row in range(2)]
    table = torch.tensor(of_rules, dtype=torch.float64)

    def penalties(y):
        return table[:, :3] if y is better else table[:, 3:]

    given = rank_violation(energy.at(WORDS), penalties, better, worse)
    for row in range(2):
        losses = []
        for place in range(3):
            gained = table[row, 3 + place].item() - table[row, place].item()
            energies = energy.at(WORDS[row : row + 1])(candidates[row : row + 1])[0]
            apart = (energies[3 + place] - energies[place]).item()  # how much lower the better one lies
            losses.append(max(gained - apart, 0) if gained > 0 else 0)
        assert given[row].item() == pytest.approx(sum(losses) / 3)
    assert given.any()


def test_a_search_for_reward_is_what_sg_spen_prefers(energy, batch):
    method = SearchSPEN(energy, SPACE, inference=AT_NET)
    method.rules, method.search = RULES, LocalSearch(40, 64)
    other = batch.unlabelled
    start = method.start(other.x, other.mask).detach()
    torch.manual_seed(0)
    better, worse = method.pairs(Given(other, energy.at(other.x), method.penalties(other), start, None))
    assert torch.equal(worse[:, 0], SPACE.decode(method.predict(other.x, other.mask)))
    for row in range(2):
        assert penalty(RULES, row, better[row, 0]) <= penalty(RULES, row, worse[row, 0])
        assert penalty(RULES, row, better[row, 0]) == 0  # all can be kept
    truth, found = method.pairs(Given(batch, energy.at(batch.x), None, start, batch.y))
    assert torch.equal(truth[:, 0], batch.y)
    assert torch.equal(found, worse)


def test_pairs_along_a_path_have_the_better_one_first(energy, batch):
    method = RankSPEN(energy, SPACE, inference=AT_NET)
    method.rules = RULES
    other = batch.unlabelled
    start = method.start(other.x, other.mask).detach()
    torch.manual_seed(0)
    penalties = method.penalties(other)
    better, worse = method.pairs(Given(other, energy.at(other.x), penalties, 3 * start, None))
    assert better.shape == (2, method.points, 3, 3)
    assert (penalties(better) <= penalties(worse)).all()
    assert (penalties(better) < penalties(worse)).any()
    cost = partial(TokenCost().cost, truth=batch.y)
    _, of_truth = method.pairs(Given(batch, energy.at(batch.x), cost, start, batch.y))
    assert of_truth.shape[1] == method.points + 1


@pytest.mark.parametrize("made", [RankSPEN, SearchSPEN])
def test_the_loss_is_that_of_labels_and_a_weight_times_that_of_rewards(energy, batch, made):
    method = made(energy, SPACE, inference=AT_NET)
    method.rules, method.weight = RULES, 0.3
    losses = []
    for one in (batch, batch._replace(unlabelled=None)):
        torch.manual_seed(0)
        (update,) = method.updates(one)
        losses.append(update.loss)
    torch.manual_seed(0)
    list(method.updates(batch._replace(unlabelled=None)))
    other = batch.unlabelled
    violation = method.violation(other, energy.at(other.x), method.penalties(other))
    torch.testing.assert_close(losses[0], losses[1] + 0.3 * violation.mean())


# ---------------------------------------------------------------- DVN, SEAL and implicit on rewards


def test_dvn_learns_accuracy_with_labels_and_the_reward_without(energy, batch):
    method = RewardDVN(energy, SPACE, inference=AT_NET)
    method.rules, method.scale, before = RULES, 2.5, method.loss
    scores = []
    for update in method.updates(batch):
        scores.append(method.loss.score)
        assert update.network == "energy"
    accuracy, reward = scores
    one = batch.y.unsqueeze(1)
    torch.testing.assert_close(accuracy(one, batch.y), torch.ones(2, 1, dtype=torch.float64))
    wanted = [math.exp(-penalty(RULES, row, batch.y[row]) / 2.5) for row in range(2)]
    torch.testing.assert_close(reward(one, batch.y)[:, 0], torch.tensor(wanted, dtype=torch.float64))
    assert method.loss is before


def test_seal_has_no_cross_entropy_without_labels(energy, batch):
    task_net = tagger()
    method = RewardSEAL(task_net, energy.float(), SPACE)
    method.rules = RULES
    batch = batch._replace(y=batch.y.float())
    *_, update = method.updates(batch)
    prediction = method.prediction(batch.unlabelled)
    with torch.no_grad():
        wanted = energy.at(WORDS)(prediction.relaxed.unsqueeze(1)).mean()
    torch.testing.assert_close(update.loss, wanted)


# ---------------------------------------------------------------- generalised expectation


def test_expectations_of_rules_are_exact_and_pull_towards_what_they_say(batch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(2), nn.Linear(1, 3)).double()
    method = GeneralizedExpectation(net, SPACE, settings=Settings(input_noise=0.0))
    method.rules = RULES[:3]
    other = batch.unlabelled._replace(x=WORDS.double())
    losses = method.unlabelled_loss(other)
    chances, total = method.student(other.x).softmax(-1).tolist(), 0.0
    # by hand: "So" twice; neighbours after "pp" and after "So"; those before "." and ","
    broken = {
        "suggests": [1 - chances[0][2][0], 1 - chances[1][0][0]],
        "after": [differ(chances[0][0], chances[0][1]), differ(chances[1][0], chances[1][1])],
        "begins": [differ(chances[0][0], chances[0][1]), differ(chances[1][0], chances[1][1])],
    }
    for weight, rates in zip((1.3, 2.0, 0.4), broken.values(), strict=True):
        rate = sum(rates) / 2
        both = 0.05 * math.log(0.05 / rate) + 0.95 * math.log(0.95 / (1 - rate))
        total += weight * 2 * (both if rate > 0.05 else 0)
    assert losses.tolist() == pytest.approx([total / 2] * 2)


def differ(first, second):
    """The chance that two independent tokens have different tags."""
    return 1 - sum(one * other for one, other in zip(first, second, strict=True))


def test_a_rule_that_is_kept_better_than_asked_costs_nothing(batch):
    net = nn.Sequential(nn.Flatten(2), nn.Linear(1, 3)).double()
    nn.init.zeros_(net[1].weight)
    with torch.no_grad():
        net[1].bias.copy_(torch.tensor([20.0, 0, 0]))
    method = GeneralizedExpectation(net, SPACE, settings=Settings(input_noise=0.0))
    method.rules = RULES[:3]
    assert not method.unlabelled_loss(batch.unlabelled._replace(x=WORDS.double())).any()


# ---------------------------------------------------------------- an energy that corrects targets


def test_targets_move_against_the_slope_of_the_energy(energy, batch):
    task_net = tagger().double()
    method = CorrectedTeacher(task_net, energy, SPACE, step=0.7)
    teacher = method.prediction(batch.unlabelled)
    target = method.target(teacher, batch.unlabelled)
    y, of = teacher.relaxed.detach(), energy.at(WORDS)
    slope = torch.zeros_like(y)
    for place in torch.cartesian_prod(*(torch.arange(size) for size in y.shape)).tolist():
        values = []
        for step in (1e-6, -1e-6):
            moved = y.clone()
            moved[tuple(place)] += step
            values.append(of(moved.unsqueeze(1))[place[0], 0].item())
        slope[tuple(place)] = (values[0] - values[1]) / 2e-6
    wanted = Prediction(SPACE, teacher.logits - 0.7 * slope, MASK).relaxed
    torch.testing.assert_close(target, wanted, atol=1e-7, rtol=1e-7)
    still = CorrectedTeacher(task_net, energy, SPACE, step=0.0)
    torch.testing.assert_close(still.target(teacher, batch.unlabelled), teacher.relaxed)


# ---------------------------------------------------------------- from settings


SENTENCES = Sentences((("pp", ".", "So", "So"), ("So", ",", "pp", ".")))


def task(rules=RULES):
    lexicon = Lexicon.fit(SENTENCES, ("shape",))
    return Task(Words(lexicon), TagsKind(TagSet(("x", "y", "z"))), OwnParts(rules=rules))


@pytest.mark.parametrize("name", [name for name, spec in METHODS.items() if spec.rules])
def test_methods_are_built_with_their_rules(name):
    method = build(name, METHODS[name].default_loss, Settings(task_hidden=4, energy_hidden=4), task())
    assert method.semi_supervised
    assert len(method.rules) == (3 if name == "expectation" else 4)
    if hasattr(method, "scale"):
        changed = Settings(task_hidden=4, energy_hidden=4, reward_scale=9.0)
        assert build(name, METHODS[name].default_loss, changed, task()).scale == 9.0


def test_an_expectation_needs_rules_about_tokens():
    with pytest.raises(ValueError, match="needs rules about tokens or neighbours"):
        build("expectation", "none", Settings(task_hidden=4), task((exactly(1),)))


def test_an_energy_may_see_shapes_and_no_words():
    settings = Settings(task_hidden=4, energy_hidden=4, energy_words=False)
    unruled = task(rules=())
    made = build("corrected-teacher", "nce", settings, unruled)
    x = task().input.prepare(SENTENCES).batch(torch.tensor([0]))
    other = x.clone()
    other[..., 0] = torch.where(x[..., 0] > 0, 1, 0)  # all words unknown
    y = torch.rand(1, 2, 4, 3)
    assert torch.equal(made.energy.eval()(x, y), made.energy(other, y))
    assert not torch.equal(made.task_net.eval()(x), made.task_net(other))
    settings = replace(settings, energy_words=True)
    seen = build("corrected-teacher", "nce", settings, unruled).energy.eval()
    assert not torch.equal(seen(x, y), seen(other, y))


def test_words_are_dropped_in_training_only():
    net = WordVectors(torch.randn(9, 5), columns=(3,), dropout=0.5)
    x = torch.full((200, 10, 2), 2)
    known, unknown = net.vectors[2], net.vectors[1]
    seen = net(x)[..., :5]
    dropped = (seen == unknown).all(-1)
    assert ((seen == known).all(-1) | dropped).all()
    assert dropped.float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert (net(x)[..., 5:] == net.columns[0](torch.tensor(2))).all()
    assert (net.eval()(x)[..., :5] == known).all()
