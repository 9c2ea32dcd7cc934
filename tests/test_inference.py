from itertools import product

import pytest
import torch
from torch.nn import functional

from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.inference import GradientInference, LocalSearch
from lossnet.losses import Regression
from lossnet.nets import MLP
from lossnet.scores import Hamming
from lossnet.spaces import Mask, MultiLabel, Tags

SPACE = MultiLabel(4)
COSTS = torch.tensor([[1.0, -0.5, 0.2, -2.0], [-1.0, 0.7, -0.3, 0.4]])
ways = pytest.mark.parametrize(
    ("update", "optimizer"), [*product(["mirror", "gradient"], ["sgd", "momentum", "adam"])]
)


def separable(costs=COSTS):
    return lambda y: torch.einsum("bk...,b...->bk", y, costs)


def bowl(centre):
    return lambda y: (y - centre.unsqueeze(1)).flatten(2).square().sum(2)


def network(seed=0):
    torch.manual_seed(seed)
    return Sum(MLP(3, hidden=5, layers=1), Local(5, 4), LabelInteraction(4, 6, features=5))


# ---------------------------------------------------------------- it finds the minimum


@ways
def test_separable_energy_is_minimised_exactly(update, optimizer):
    inference = GradientInference(steps=200, lr=0.5, update=update, optimizer=optimizer)
    result = inference(separable(), SPACE, torch.zeros(2, 4))
    assert torch.equal(SPACE.decode(result.best), (COSTS < 0).float())
    if update == "gradient":
        assert torch.equal(result.best, (COSTS < 0).float())


@ways
def test_separable_energy_over_tags_is_minimised_exactly(update, optimizer):
    torch.manual_seed(0)
    costs = torch.eye(3)[torch.randint(3, (2, 4))] * -(0.3 + torch.rand(2, 4, 1)) + 0.1
    mask = torch.tensor([[1.0, 1, 1, 0], [1, 1, 0, 0]])
    inference = GradientInference(steps=300, lr=0.5, update=update, optimizer=optimizer, tolerance=0)
    result = inference(separable(costs), Tags(3), torch.zeros(2, 4, 3), mask)
    expected = functional.one_hot(costs.argmin(-1), 3) * mask.unsqueeze(-1)
    torch.testing.assert_close(Tags(3).decode(result.best), expected)
    assert result.outputs[0, 0, 3].eq(0).all()
    assert result.outputs[1, 0, 2:].eq(0).all()
    sums = result.outputs.sum(-1).squeeze(1)
    torch.testing.assert_close(sums, mask)


@ways
def test_separable_energy_over_pixels_leaves_padding_zero(update, optimizer):
    torch.manual_seed(0)
    costs, mask = torch.randn(1, 2, 3), torch.tensor([[[1.0, 1, 0], [1, 1, 0]]])
    inference = GradientInference(steps=100, lr=0.5, update=update, optimizer=optimizer)
    result = inference(separable(costs), Mask(), torch.zeros(1, 2, 3), mask)
    torch.testing.assert_close(Mask().decode(result.best), (costs < 0).float() * mask)
    assert result.best[..., 2].eq(0).all()


@pytest.mark.parametrize(
    ("optimizer", "lr", "patience"), [("sgd", 0.2, 3), ("momentum", 0.05, 50), ("adam", 0.01, 50)]
)
def test_gradient_descent_reaches_an_interior_optimum(optimizer, lr, patience):
    torch.manual_seed(0)
    root = torch.randn(4, 4)
    matrix, centre = root @ root.T / 4 + torch.eye(4) / 2, torch.rand(2, 4) * 0.6 + 0.2

    def energy(y):
        away = y - centre.unsqueeze(1)
        return torch.einsum("bki,ij,bkj->bk", away, matrix, away) + 1

    inference = GradientInference(600, lr, "gradient", optimizer, tolerance=0, patience=patience)
    torch.testing.assert_close(inference(energy, SPACE, torch.zeros(2, 4)).best, centre, atol=2e-3, rtol=0)


def test_gradient_descent_over_tags_reaches_the_projection_of_an_outside_optimum():
    torch.manual_seed(0)
    centre = torch.randn(2, 3, 4, dtype=torch.float64)
    inference = GradientInference(100, 0.2, "gradient", tolerance=0)
    result = inference(bowl(centre), Tags(4), torch.zeros_like(centre))
    torch.testing.assert_close(result.best, Tags(4).project(centre), atol=1e-6, rtol=0)


def test_mirror_descent_over_tags_reaches_an_interior_optimum():
    centre = torch.tensor([[[0.2, 0.5, 0.3], [0.7, 0.2, 0.1]]])
    inference = GradientInference(500, 0.5, tolerance=0)
    result = inference(bowl(centre), Tags(3), torch.zeros(1, 2, 3))
    torch.testing.assert_close(result.best, centre, atol=1e-3, rtol=0)


@ways
def test_the_cheapest_of_several_rewarding_tags_is_found(update, optimizer):
    inference = GradientInference(300, 0.5, update, optimizer, tolerance=0)
    costs = torch.tensor([[[-2.0, -1.0, 0.5]]])
    result = inference(separable(costs), Tags(3), torch.zeros(1, 1, 3))
    torch.testing.assert_close(result.values.item(), -2.0, atol=0.05, rtol=0)


def test_one_mirror_step_moves_the_logits_by_the_gradient_of_the_output():
    inference = GradientInference(steps=1, lr=0.3)
    result = inference(separable(), SPACE, torch.zeros(2, 4))
    torch.testing.assert_close(result.best, torch.sigmoid(-0.3 * COSTS))


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        ("sgd", lambda at: torch.optim.SGD([at], lr=0.01)),
        ("momentum", lambda at: torch.optim.SGD([at], lr=0.01, momentum=0.9)),
        ("adam", lambda at: torch.optim.Adam([at], lr=0.01)),
    ],
)
def test_optimizers_take_the_steps_of_torch(optimizer, make):
    centre = torch.tensor([[0.9, 0.2, 0.5, 0.7]], dtype=torch.float64)
    inference = GradientInference(10, 0.01, "gradient", optimizer, start="net", tolerance=0)
    result = inference(bowl(centre), SPACE, torch.zeros(1, 4, dtype=torch.float64))
    at = torch.full((1, 4), 0.5, dtype=torch.float64, requires_grad=True)
    steps = make(at)
    for _ in range(10):
        steps.zero_grad()
        (at - centre).square().sum().backward()
        steps.step()
    torch.testing.assert_close(result.best, at.detach())


@pytest.mark.parametrize("start", ["zeros", "noise", "uniform"])
def test_adam_on_the_output_stays_within_bounds_and_reaches_a_convex_optimum(start):
    """A convex quadratic whose optimum lies on some bounds and between others; KKT instead of a solver."""
    torch.manual_seed(0)
    root = torch.randn(4, 4, dtype=torch.float64)
    matrix = root @ root.T / 4 + torch.eye(4)
    linear = torch.tensor([[3.0, -4.0, 0.3, -0.6], [-0.2, -0.9, 2.0, -5.0]], dtype=torch.float64)
    seen = []

    def energy(y):
        seen.append(y.detach())
        return torch.einsum("bki,ij,bkj->bk", y, matrix, y) / 2 + torch.einsum("bki,bi->bk", y, linear)

    inference = GradientInference(2000, 0.01, "gradient", "adam", start, tolerance=0, patience=2001)
    best = inference(energy, SPACE, torch.zeros(2, 4, dtype=torch.float64)).best
    visited = torch.stack(seen)
    assert visited.min() >= 0
    assert visited.max() <= 1
    gradient = best @ matrix + linear
    low, high = best < 1e-6, best > 1 - 1e-6
    assert low.any()
    assert high.any()
    assert not (low | high).all()
    assert (gradient[low] > 0).all()
    assert (gradient[high] < 0).all()
    assert gradient[~(low | high)].abs().max() < 1e-4


def test_adam_on_the_output_takes_the_steps_of_torch_with_clamps_between():
    centre = torch.tensor([[1.4, -0.3, 0.5, 0.7]], dtype=torch.float64)
    inference = GradientInference(40, 0.1, "gradient", "adam", start="net", tolerance=0, patience=41)
    result = inference(bowl(centre), SPACE, torch.zeros(1, 4, dtype=torch.float64))
    at = torch.full((1, 4), 0.5, dtype=torch.float64, requires_grad=True)
    adam, lowest = torch.optim.Adam([at], lr=0.1), (torch.inf, None)
    for _ in range(41):
        adam.zero_grad()
        value = (at - centre).square().sum()
        lowest = min(lowest, (value.item(), at.detach().clone()), key=lambda pair: pair[0])
        value.backward()
        adam.step()
        at.data.clamp_(0, 1)
    torch.testing.assert_close(result.best, lowest[1])


@pytest.mark.parametrize("update", ["mirror", "gradient"])
def test_uniform_starts_are_uniform_outputs_of_the_generator(update):
    inference = GradientInference(0, update=update, start="uniform", candidates=3)
    logits = torch.zeros(500, 4)
    first, again = (
        inference(lambda y: y.sum(-1), SPACE, logits, generator=torch.Generator().manual_seed(1)).outputs
        for _ in range(2)
    )
    assert torch.equal(first, again)
    wanted = torch.empty(500, 3, 4).uniform_(generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(first, wanted, atol=2e-6, rtol=0)
    tags = inference(lambda y: y.flatten(2).sum(-1), Tags(4), torch.zeros(2, 3, 4)).outputs
    torch.testing.assert_close(tags.sum(-1), torch.ones(2, 3, 3))


# ---------------------------------------------------------------- objectives


@pytest.mark.parametrize("update", ["mirror", "gradient"])
def test_cost_augmented_inference_finds_the_most_violated_constraint(update):
    torch.manual_seed(0)
    costs, truth = torch.randn(6, 4) / 4, (torch.rand(6, 4) > 0.5).float()
    everything = torch.tensor([*product([0.0, 1.0], repeat=4)]).expand(6, -1, -1)
    violation = (everything - truth.unsqueeze(1)).abs().mean(2) - separable(costs)(everything)

    def objective(y):
        return separable(costs)(y) - Hamming().cost(y, truth)

    inference = GradientInference(400, 2.0, update, candidates=3, tolerance=0)
    result = inference(objective, SPACE, torch.zeros(6, 4))
    found = SPACE.decode(result.best)
    torch.testing.assert_close(-objective(found.unsqueeze(1))[:, 0], violation.max(1).values)
    assert torch.equal(found, everything[0, violation.argmax(1)])


def test_adversarial_inference_raises_the_regression_loss():
    torch.manual_seed(0)
    energy, loss = network().at(torch.randn(5, 3)), Regression()
    truth, logits = (torch.rand(5, 4) > 0.5).float(), torch.randn(5, 4)
    inference = GradientInference(30, 0.1, "gradient", start="net")
    result = inference(lambda y: -loss.of_candidates(energy, truth, y), SPACE, logits)
    before = loss.of_candidates(energy, truth, logits.sigmoid().unsqueeze(1))
    after = loss.of_candidates(energy, truth, result.outputs)
    assert (after > before + 1e-3).all()
    torch.testing.assert_close(-result.values, after.detach())


# ---------------------------------------------------------------- the best so far


@ways
def test_result_is_the_best_output_visited(update, optimizer):
    torch.manual_seed(1)
    visited, energy, valley = [], network().at(torch.randn(3, 3)), bowl(torch.rand(3, 4))

    def value(y):
        return energy(y).detach() + 20 * valley(y)

    def objective(y):
        visited.append(value(y.detach()))
        return energy(y) + 20 * valley(y)

    inference = GradientInference(26, 0.3, update, optimizer, candidates=2, patience=100)
    result = inference(objective, SPACE, torch.zeros(3, 4))
    lowest = torch.stack(visited).amin(0)
    assert len(visited) == 27
    assert (visited[-1] > lowest).any()
    torch.testing.assert_close(result.values, lowest)
    torch.testing.assert_close(value(result.outputs), lowest)
    torch.testing.assert_close(value(result.best.unsqueeze(1))[:, 0], lowest.amin(1))


@ways
def test_instances_of_a_batch_do_not_influence_each_other(update, optimizer):
    torch.manual_seed(0)
    energy, x = network(), torch.randn(6, 3)
    inference = GradientInference(60, 0.3, update, optimizer, tolerance=1e-3)
    together = inference(energy.at(x), SPACE, torch.zeros(6, 4))
    for row in range(6):
        alone = inference(energy.at(x[[row]]), SPACE, torch.zeros(1, 4))
        torch.testing.assert_close(together.best[[row]], alone.best)
        torch.testing.assert_close(together.steps[[row]], alone.steps)


def test_candidate_that_no_longer_improves_stops():
    slopes = torch.tensor([[0.0], [1.0], [0.0]])
    inference = GradientInference(steps=40, lr=0.1, patience=4)
    result = inference(separable(slopes), MultiLabel(1), torch.zeros(3, 1))
    assert result.steps.tolist() == [[4], [40], [4]]


def test_inference_ends_when_every_candidate_has_stopped():
    calls = []

    def constant(y):
        calls.append(1)
        return 0 * y.sum(-1)

    GradientInference(steps=1000, patience=5)(constant, SPACE, torch.zeros(2, 4))
    assert len(calls) == 6


def test_patience_bridges_a_detour_that_ends_lower():
    # Momentum overshoots the shallow end of a bowl before it comes back.
    centre = torch.tensor([[0.5, 0.5, 0.5, 0.4]])
    hasty = GradientInference(300, 0.1, "gradient", "momentum", patience=3)
    patient = GradientInference(300, 0.1, "gradient", "momentum", patience=30)
    assert hasty(bowl(centre), SPACE, centre).steps < patient(bowl(centre), SPACE, centre).steps


@ways
@pytest.mark.parametrize("start", ["zeros", "net"])
def test_more_candidates_are_never_worse(update, optimizer, start):
    torch.manual_seed(0)
    energy, logits = network().at(torch.randn(5, 3)), torch.randn(5, 4)
    one = GradientInference(15, 0.3, update, optimizer, start, candidates=1)
    many = GradientInference(15, 0.3, update, optimizer, start, candidates=6)
    single, several = one(energy, SPACE, logits), many(energy, SPACE, logits)
    assert several.outputs.shape == (5, 6, 4)
    torch.testing.assert_close(several.values[:, :1], single.values)
    assert (several.values.amin(1) <= single.values[:, 0] + 1e-6).all()


# ---------------------------------------------------------------- starting points


@pytest.mark.parametrize("update", ["mirror", "gradient"])
def test_zero_steps_from_the_net_return_the_relaxed_logits(update):
    logits = torch.randn(2, 4)
    inference = GradientInference(0, update=update, start="net", candidates=3)
    result = inference(separable(), SPACE, logits)
    torch.testing.assert_close(result.outputs[:, 0], logits.sigmoid())
    torch.testing.assert_close(result.values, separable()(result.outputs))
    assert (result.outputs[:, 1] != result.outputs[:, 0]).all()
    assert result.steps.eq(0).all()


@pytest.mark.parametrize(
    ("space", "shape", "update", "expected"),
    [
        (SPACE, (2, 4), "mirror", 0.5),
        (SPACE, (2, 4), "gradient", 0.0),
        (Mask(), (2, 2, 3), "gradient", 0.0),
        (Tags(4), (2, 3, 4), "mirror", 0.25),
        (Tags(4), (2, 3, 4), "gradient", 0.25),
    ],
)
def test_zeros_ignore_the_logits(space, shape, update, expected):
    result = GradientInference(0, update=update)(lambda y: y.flatten(2).sum(2), space, torch.randn(shape))
    torch.testing.assert_close(result.best, torch.full(shape, expected))


@pytest.mark.parametrize("update", ["mirror", "gradient"])
def test_noise_has_the_given_deviation_in_every_candidate(update):
    torch.manual_seed(0)
    inference = GradientInference(0, update=update, start="noise", candidates=2, noise=0.5)
    result = inference(lambda y: y.sum(-1), MultiLabel(1), torch.full((4000, 1), 9.0))
    drawn = result.outputs.logit().squeeze(-1)
    assert (drawn.std(0) - 0.5).abs().max() < 5 * 0.5 / 8000**0.5
    assert drawn.mean(0).abs().max() < 5 * 0.5 / 4000**0.5


@pytest.mark.parametrize("start", ["zeros", "noise", "net"])
@pytest.mark.parametrize("update", ["mirror", "gradient"])
def test_every_start_is_a_relaxed_output_that_is_zero_on_padding(start, update):
    torch.manual_seed(0)
    mask = torch.tensor([[1.0, 1, 0]])
    inference = GradientInference(0, update=update, start=start, candidates=4)
    result = inference(lambda y: y.flatten(2).sum(2), Tags(3), torch.randn(1, 3, 3), mask)
    torch.testing.assert_close(result.outputs.sum(-1), mask.expand(1, 4, 3))
    assert (result.outputs >= 0).all()


# ---------------------------------------------------------------- gradients stay inside


@ways
def test_it_works_without_grad_and_gives_the_same(update, optimizer):
    energy, x = network(), torch.randn(3, 3)
    inference = GradientInference(10, 0.3, update, optimizer)
    expected = inference(energy.at(x), SPACE, torch.zeros(3, 4))
    with torch.no_grad():
        result = inference(energy.at(x), SPACE, torch.zeros(3, 4))
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(result.outputs, expected.outputs)


@pytest.mark.parametrize("update", ["mirror", "gradient"])
def test_no_gradient_is_left_anywhere(update):
    energy, x = network(), torch.randn(3, 3, requires_grad=True)
    logits = torch.randn(3, 4, requires_grad=True)
    result = GradientInference(5, update=update, start="net")(energy.at(x), SPACE, logits)
    assert not result.outputs.requires_grad
    assert not result.values.requires_grad
    assert logits.grad is None
    assert x.grad is None
    assert all(p.grad is None and p.requires_grad for p in energy.parameters())


@pytest.mark.parametrize("update", ["mirror", "gradient"])
def test_steps_do_not_chain_into_one_growing_graph(update):
    leaves = []

    def objective(y):
        leaves.append(y.is_leaf)
        return separable()(y)

    GradientInference(5, update=update)(objective, SPACE, torch.zeros(2, 4))
    assert all(leaves)


# ---------------------------------------------------------------- local search


def distance(goal):
    return lambda y: (y - goal.unsqueeze(1)).abs().flatten(2).sum(-1)


@pytest.mark.parametrize("space", [MultiLabel(6), Tags(3), Mask()])
def test_local_search_finds_a_goal_and_never_worsens(space):
    torch.manual_seed(0)
    shape = {"MultiLabel": (4, 6), "Tags": (4, 5, 3), "Mask": (4, 3, 4)}[type(space).__name__]
    start, goal = (space.decode(space.relax(torch.randn(shape))) for _ in range(2))
    few = LocalSearch(rounds=2, moves=4)(distance(goal), space, start)
    assert (few.values <= distance(goal)(start.unsqueeze(1))).all()
    found = LocalSearch(rounds=80, moves=64)(distance(goal), space, start)
    assert torch.equal(found.best, goal)
    assert not found.values.any()
    torch.testing.assert_close(few.values, distance(goal)(few.outputs))


def test_moves_of_tags_set_neighbouring_chunks_to_one_tag():
    torch.manual_seed(0)
    space, breaks = Tags(3), torch.tensor([[True, False, True, True, False, False]]).repeat(2, 1)
    mask = torch.ones(2, 6)
    mask[1, 4:] = 0
    y = torch.nn.functional.one_hot(torch.randint(3, (2, 6)), 3) * mask.unsqueeze(2)
    moved = space.moves(y, 300, mask, breaks)
    assert torch.equal(moved.sum(-1), mask.unsqueeze(1).expand(-1, 300, -1))
    chunk = breaks.cumsum(1)
    seen = set()
    for row in range(2):
        for candidate in moved[row]:
            places = (candidate != y[row]).any(-1).nonzero().flatten().tolist()
            if places:
                tags = {int(candidate[place].argmax()) for place in places}
                assert len(tags) == 1
                first, last = chunk[row, places[0]], chunk[row, places[-1]]
                inside = (chunk[row] >= first) & (chunk[row] <= last) & (mask[row] > 0)
                assert {int(tag) for tag in candidate[inside].argmax(-1)} == tags
                seen.add((row, int(first), int(last)))
    assert len(seen) > 8


def test_moves_of_sets_flip_one_label_or_swap_two():
    torch.manual_seed(0)
    y = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.0]])
    moved = MultiLabel(5).moves(y, 200)[0]
    changes = (moved != y).sum(1)
    assert (changes[::2] == 1).all()
    assert set(changes[1::2].tolist()) == {0, 2}
    assert (moved[1::2].sum(1) == 2).all()


def test_a_space_that_has_no_moves_says_so():
    from lossnet.spaces import Space

    with pytest.raises(NotImplementedError, match="define `moves`"):
        Space.moves(Tags(3), torch.zeros(1, 2, 3), 4)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_unrolled_steps_are_those_of_inference(optimizer):
    inference = GradientInference(steps=4, lr=0.3, optimizer=optimizer, tolerance=-1.0)
    energy = network().at(torch.ones(2, 3))
    path = inference.unrolled(energy, SPACE, torch.zeros(2, 4))
    assert path.shape == (2, 4, 4)
    assert path.requires_grad
    torch.testing.assert_close(SPACE.relax(path[:, -1]), inference(energy, SPACE, torch.zeros(2, 4)).best)
    with torch.no_grad():
        assert not inference.unrolled(energy, SPACE, torch.zeros(2, 4)).requires_grad


@pytest.mark.parametrize("way", [{"update": "gradient"}, {"optimizer": "adam"}])
def test_steps_without_derivatives_are_not_unrolled(way):
    with pytest.raises(ValueError, match="cannot be differentiated; set the update to mirror"):
        GradientInference(**way).unrolled(separable(), SPACE, torch.zeros(2, 4))
