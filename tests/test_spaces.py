import math
import re
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import optimize, stats
from torch.distributions import Bernoulli, Categorical
from torch.nn import functional

from lossnet import ops
from lossnet.ops import weighted_sum
from lossnet.spaces import Batch, Blocks, Field, Mask, MultiLabel, Prediction, Smooth, Tags

fast = settings(max_examples=40, deadline=None, database=None)

CASES = [
    pytest.param(MultiLabel(3), (3,), torch.tensor([[1, 1, 0], [1, 0, 1]]), id="labels"),
    pytest.param(Mask(), (2, 2), torch.tensor([[[1, 1], [0, 0]], [[1, 0], [1, 0]]]), id="mask"),
    pytest.param(Tags(3), (2, 3), torch.tensor([[1, 1], [1, 0]]), id="tags"),
]
every_space = pytest.mark.parametrize(("space", "event", "mask"), CASES)


def random_logits(event, batch=2, seed=0, scale=1.5):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(batch, *event, generator=generator, dtype=torch.float64)


def every_output(space, event):
    if isinstance(space, Tags):
        length, tags = event
        return functional.one_hot(torch.tensor([*product(range(tags), repeat=length)]), tags).double()
    units = torch.tensor([*product([0.0, 1.0], repeat=math.prod(event))], dtype=torch.float64)
    return units.reshape(-1, *event)


def for_each(outputs, batch=2):
    return outputs.expand(batch, *outputs.shape)


def real_units(space, mask):
    return mask.unsqueeze(-1) if isinstance(space, Tags) else mask


# ---------------------------------------------------------------- log-probabilities


@every_space
def test_probabilities_of_all_outputs_sum_to_one(space, event, mask):
    outputs = for_each(every_output(space, event))
    total = space.log_prob(random_logits(event), outputs).exp().sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))


@every_space
def test_relaxed_output_is_the_mean_of_all_outputs(space, event, mask):
    outputs, logits = every_output(space, event), random_logits(event)
    weights = space.log_prob(logits, for_each(outputs)).exp()
    torch.testing.assert_close(space.relax(logits), torch.einsum("bk,k...->b...", weights, outputs))


@every_space
def test_masked_probabilities_sum_to_one_over_outputs_that_are_zero_on_padding(space, event, mask):
    outputs, logits = every_output(space, event), random_logits(event)
    for row in range(2):
        padded = (outputs * real_units(space, mask[row])).unique(dim=0)
        log_prob = space.log_prob(logits[row : row + 1], padded[None], mask[row : row + 1])
        torch.testing.assert_close(log_prob.exp().sum().item(), 1.0)


@pytest.mark.parametrize(("space", "event"), [(MultiLabel(3), (3,)), (Mask(), (2, 2))])
def test_binary_log_prob_matches_independent_bernoullis(space, event):
    outputs, logits = every_output(space, event), random_logits(event)
    expected = Bernoulli(logits=logits.unsqueeze(1)).log_prob(outputs).flatten(2).sum(2)
    torch.testing.assert_close(space.log_prob(logits, for_each(outputs)), expected)


def test_tag_log_prob_matches_independent_categoricals():
    space, outputs, logits = Tags(3), every_output(Tags(3), (2, 3)), random_logits((2, 3))
    expected = Categorical(logits=logits.unsqueeze(1)).log_prob(outputs.argmax(-1)).sum(2)
    torch.testing.assert_close(space.log_prob(logits, for_each(outputs)), expected)


@every_space
def test_log_prob_of_a_mixture_is_the_mixture_of_log_probs(space, event, mask):
    outputs, logits = every_output(space, event), random_logits(event)
    first, last = for_each(outputs[1:2]), for_each(outputs[-1:])
    expected = 0.3 * space.log_prob(logits, first) + 0.7 * space.log_prob(logits, last)
    torch.testing.assert_close(space.log_prob(logits, 0.3 * first + 0.7 * last), expected)


@every_space
def test_log_prob_and_relax_have_correct_gradients(space, event, mask):
    logits = random_logits(event).requires_grad_()
    outputs = for_each(every_output(space, event)[:3])
    assert torch.autograd.gradcheck(lambda at: space.log_prob(at, outputs, mask), logits)
    assert torch.autograd.gradcheck(lambda at: space.relax(at, mask), logits)


@pytest.mark.parametrize(("space", "event"), [(MultiLabel(3), (3,)), (Mask(), (2, 2))])
def test_binary_cross_entropy_is_the_summed_bce(space, event):
    logits, truth = random_logits(event), every_output(space, event)[[2, 5]]
    expected = functional.binary_cross_entropy_with_logits(logits, truth, reduction="none").flatten(1).sum(1)
    torch.testing.assert_close(Prediction(space, logits).cross_entropy(truth), expected)


def test_tag_cross_entropy_is_the_summed_cross_entropy_of_real_tokens():
    logits, mask = random_logits((4, 3)), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    classes = torch.tensor([[0, 2, 1, -100], [1, 1, -100, -100]])
    truth = functional.one_hot(classes.clamp(min=0), 3) * mask.unsqueeze(-1).double()
    expected = functional.cross_entropy(logits.transpose(1, 2), classes, reduction="none").sum(1)
    torch.testing.assert_close(Prediction(Tags(3), logits, mask).cross_entropy(truth), expected)


@every_space
@pytest.mark.parametrize("size", [1e2, 1e4])
def test_cross_entropy_of_extreme_logits_is_finite(space, event, mask, size):
    logits = (size * random_logits(event).sign()).float().requires_grad_()
    loss = Prediction(space, logits).cross_entropy(every_output(space, event)[[1, 2]].float())
    loss.sum().backward()
    assert loss.isfinite().all()
    assert logits.grad.isfinite().all()


# ---------------------------------------------------------------- samples


@every_space
def test_samples_follow_the_joint_distribution(space, event, mask):
    torch.manual_seed(0)
    outputs, logits = every_output(space, event), random_logits(event, scale=0.7)
    drawn = space.sample(logits, 20_000)
    same = (drawn.flatten(2).unsqueeze(2) == outputs.flatten(1)).all(-1)
    assert same.any(-1).all()
    expected = space.log_prob(logits, for_each(outputs)).exp().numpy()
    for row in range(2):
        counts = same[row].sum(0).numpy()
        assert stats.chisquare(counts, expected[row] * 20_000).pvalue > 1e-3


@every_space
def test_sample_frequencies_match_relax(space, event, mask):
    torch.manual_seed(1)
    logits = random_logits(event)
    frequency = space.sample(logits, 20_000, mask).mean(1)
    assert (frequency - space.relax(logits, mask)).abs().max() < 5 * 0.5 / math.sqrt(20_000)


@every_space
def test_samples_are_discrete_without_gradient_and_carry_the_candidate_axis(space, event, mask):
    logits = random_logits(event).float().requires_grad_()
    drawn = space.sample(logits, 7, mask)
    assert drawn.shape == (2, 7, *event)
    assert drawn.dtype == torch.float32
    assert not drawn.requires_grad
    assert set(drawn.unique().tolist()) <= {0.0, 1.0}


# ---------------------------------------------------------------- padding


@every_space
def test_everything_is_zero_on_padding(space, event, mask):
    logits = random_logits(event) + 3
    padding = (real_units(space, mask) == 0).expand(2, *event)
    relaxed = space.relax(logits, mask)
    results = [relaxed, space.project(logits, mask), space.decode(relaxed)]
    results += space.sample(logits, 4, mask).unbind(1)
    results += space.relax(for_each(logits, 3).transpose(0, 1), mask).unbind(1)
    results += Prediction(space, logits, mask).perturb(3, 1.0).unbind(1)
    for result in results:
        assert result[padding].eq(0).all()
        assert result[~padding].ne(0).any()


@fast
@given(real=st.integers(1, 5), extra=st.integers(0, 4), tags=st.integers(1, 4), seed=st.integers(0, 99))
def test_appending_padded_tokens_changes_nothing(real, extra, tags, seed):
    space, logits = Tags(tags), random_logits((real, tags), 1, seed)
    junk = random_logits((extra, tags), 1, seed + 1, scale=5.0)
    longer = torch.cat([logits, junk], 1)
    mask = torch.tensor([[1.0] * real + [0.0] * extra])
    truth = space.decode(random_logits((real, tags), 1, seed + 2).softmax(-1))
    padded = functional.pad(truth, (0, 0, 0, extra))
    short, long = Prediction(space, logits), Prediction(space, longer, mask)
    torch.testing.assert_close(short.cross_entropy(truth), long.cross_entropy(padded))
    dirty = torch.cat([truth, space.decode(junk.softmax(-1))], 1)
    torch.testing.assert_close(short.log_prob(truth[None]), long.log_prob(dirty[None]))
    torch.testing.assert_close(short.relaxed, long.relaxed[:, :real])
    torch.testing.assert_close(space.project(logits), space.project(longer, mask)[:, :real])


@fast
@given(real=st.integers(1, 5), extra=st.integers(0, 4), seed=st.integers(0, 99))
def test_appending_padded_columns_to_an_image_changes_nothing(real, extra, seed):
    space, logits = Mask(), random_logits((3, real), 1, seed)
    longer = torch.cat([logits, random_logits((3, extra), 1, seed + 1, scale=5.0)], 2)
    mask = torch.ones(1, 3, real + extra)
    mask[..., real:] = 0
    truth = space.decode(random_logits((3, real), 1, seed + 2))
    short, long = Prediction(space, logits), Prediction(space, longer, mask)
    torch.testing.assert_close(
        short.cross_entropy(truth), long.cross_entropy(functional.pad(truth, (0, extra)))
    )
    torch.testing.assert_close(short.relaxed, long.relaxed[..., :real])


@every_space
def test_no_gradient_reaches_padded_logits(space, event, mask):
    logits = random_logits(event).requires_grad_()
    prediction = Prediction(space, logits, mask)
    outputs = for_each(every_output(space, event)[-2:])
    (prediction.log_prob(outputs).sum() + prediction.relaxed.square().sum()).backward()
    padding = (real_units(space, mask) == 0).expand(2, *event)
    assert logits.grad[padding].eq(0).all()
    assert logits.grad[~padding].ne(0).all()


# ---------------------------------------------------------------- projection and decoding

reals = st.floats(-4, 4, allow_subnormal=False)


@fast
@given(arrays(np.float64, st.tuples(st.just(1), st.integers(1, 3), st.integers(1, 5)), elements=reals))
def test_simplex_projection_satisfies_the_variational_inequality(values):
    y = torch.from_numpy(values)
    projected = Tags(y.shape[-1]).project(y)
    assert (projected >= 0).all()
    torch.testing.assert_close(projected.sum(-1), torch.ones_like(projected.sum(-1)))
    # p is the projection iff (y − p)·(z − p) ≤ 0 for every point z, hence for every vertex.
    residual = y - projected
    slopes = residual - (residual * projected).sum(-1, keepdim=True)
    assert slopes.max() < 1e-12


def test_simplex_projection_is_the_optimum_that_scipy_finds():
    y = random_logits((4, 5), 1)[0]
    projected = Tags(5).project(y[None])[0]
    for point, ours in zip(y.numpy(), projected.numpy(), strict=True):
        found = optimize.minimize(
            lambda z, point=point: ((z - point) ** 2).sum(),
            np.full(5, 0.2),
            jac=lambda z, point=point: 2 * (z - point),
            bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda z: z.sum() - 1},
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(ours, found.x, atol=1e-6)


@every_space
def test_projection_is_idempotent_and_fixes_relaxed_and_discrete_outputs(space, event, mask):
    y = 3 * random_logits(event)
    projected = space.project(y, mask)
    torch.testing.assert_close(space.project(projected, mask), projected)
    torch.testing.assert_close(space.project(space.relax(y)), space.relax(y))
    outputs = every_output(space, event)
    torch.testing.assert_close(space.project(outputs), outputs)


@pytest.mark.parametrize(("space", "event"), [(MultiLabel(3), (3,)), (Mask(), (2, 2))])
def test_binary_projection_clamps(space, event):
    y = random_logits(event)
    np.testing.assert_array_equal(space.project(y), np.clip(y.numpy(), 0, 1))


@pytest.mark.parametrize("size", [1e3, 1e8])
def test_simplex_projection_of_large_values_is_a_vertex(size):
    y = torch.tensor([[[size, 0.0, -size]]])
    torch.testing.assert_close(Tags(3).project(y), torch.tensor([[[1.0, 0.0, 0.0]]]))


@every_space
def test_projection_with_candidate_axis_projects_each_candidate(space, event, mask):
    y = random_logits((5, *event))
    together = space.project(y, mask)
    for k in range(5):
        torch.testing.assert_close(together[:, k], space.project(y[:, k], mask))


@every_space
def test_decode_gives_the_nearest_discrete_output(space, event, mask):
    outputs, relaxed = every_output(space, event), space.relax(random_logits(event, 8))
    distance = (relaxed.unsqueeze(1) - outputs).flatten(2).square().sum(2)
    torch.testing.assert_close(space.decode(relaxed), outputs[distance.argmin(1)])


def test_binary_decode_includes_one_half():
    assert MultiLabel(2).decode(torch.tensor([[0.5, 0.4999]])).tolist() == [[1.0, 0.0]]


# ---------------------------------------------------------------- predictions and shapes


@every_space
def test_perturbation_without_noise_is_the_relaxed_output(space, event, mask):
    prediction = Prediction(space, random_logits(event), mask)
    perturbed = prediction.perturb(4, 0.0)
    assert perturbed.shape == (2, 4, *event)
    torch.testing.assert_close(perturbed, prediction.relaxed.unsqueeze(1).expand_as(perturbed))


def test_perturbation_adds_noise_of_the_given_deviation_to_each_logit():
    torch.manual_seed(0)
    prediction = Prediction(MultiLabel(3), random_logits((3,)))
    noise = prediction.perturb(5000, 0.7).logit() - prediction.logits.unsqueeze(1)
    assert noise.mean(1).abs().max() < 5 * 0.7 / math.sqrt(5000)
    assert (noise.std(1) - 0.7).abs().max() < 5 * 0.7 / math.sqrt(10_000)
    flat = noise.transpose(0, 1).flatten(1).T
    assert (torch.corrcoef(flat) - torch.eye(6)).abs().max() < 5 / math.sqrt(5000)


@every_space
def test_relax_with_candidate_axis_relaxes_each_candidate(space, event, mask):
    logits = random_logits((5, *event))
    together = space.relax(logits, mask)
    for k in range(5):
        torch.testing.assert_close(together[:, k], space.relax(logits[:, k], mask))


@every_space
def test_log_prob_of_many_candidates_is_each_candidate_alone(space, event, mask):
    prediction = Prediction(space, random_logits(event), mask)
    candidates = prediction.sample(4)
    together = prediction.log_prob(candidates)
    assert together.shape == (2, 4)
    for k in range(4):
        torch.testing.assert_close(together[:, k : k + 1], prediction.log_prob(candidates[:, [k]]))


def test_zeros_have_the_shape_of_logits():
    assert MultiLabel(7).zeros(torch.ones(2, 5)).shape == (2, 7)
    assert Tags(4).zeros(torch.ones(2, 6, 5)).shape == (2, 6, 4)
    assert Tags(4).zeros(torch.ones(2, 6, dtype=torch.long)).dtype == torch.float32
    assert Mask().zeros(torch.ones(2, 3, 8, 9)).shape == (2, 8, 9)
    assert MultiLabel(7).zeros(torch.ones(2, 5)).eq(0).all()
    assert MultiLabel(7).zeros(torch.ones(2, 5, device="meta")).device.type == "meta"


def test_detached_prediction_passes_no_gradient_and_keeps_the_mask():
    logits, mask = torch.zeros(1, 2, 3, requires_grad=True), torch.tensor([[1.0, 0.0]])
    fixed = Prediction(Tags(3), logits, mask).detach()
    assert not fixed.relaxed.requires_grad
    assert fixed.mask is mask
    assert fixed.logits.data_ptr() == logits.data_ptr()


def test_batch_moves_every_part_and_leaves_a_missing_mask_missing():
    x, y = torch.ones(2, 3), torch.ones(2, 4)
    moved = Batch(x, y, torch.ones(2, 4), torch.ones(2)).to("meta")
    assert [part.device.type for part in moved if part is not None] == ["meta"] * 4
    assert isinstance(moved, Batch)
    assert Batch(x, y).to("meta").mask is None
    assert Batch(x, y).to("meta").weight is None


def test_spaces_of_the_same_size_are_equal():
    assert MultiLabel(3) == MultiLabel(3) != MultiLabel(4)
    assert len({Tags(3), Tags(3), Mask(), Mask()}) == 2


def test_infinite_logits_of_padding_and_of_forbidden_tags_harm_nothing():
    logits = torch.tensor([[[0.0, 1.0, -torch.inf], [-torch.inf] * 3]], requires_grad=True)
    mask = torch.tensor([[1.0, 0.0]])
    y = torch.tensor([[[[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]])
    log_prob = Tags(3).log_prob(logits, y, mask)
    torch.testing.assert_close(
        log_prob.exp(), torch.tensor([[1.0]]).exp() / (1 + torch.tensor([[1.0]]).exp())
    )
    assert Tags(3).relax(logits, mask).isfinite().all()


# ---------------------------------------------------------------- coherent masks

FIELDS = [Blocks(1), Blocks(3), Blocks(40), Smooth(0.3), Smooth(2.0)]
every_field = pytest.mark.parametrize("field", FIELDS, ids=str)


@every_field
@pytest.mark.parametrize("shape", [(2, 3, 7, 9), (2, 1, 1), (1, 4, 8, 5)])
def test_fields_have_the_shape_type_and_independence_asked_for(field, shape):
    torch.manual_seed(0)
    like = torch.zeros(shape, dtype=torch.float64)
    drawn = field(like)
    assert drawn.shape == shape
    assert drawn.dtype == torch.float64
    flat = drawn.reshape(-1, *shape[-2:])
    assert all((flat[i] != flat[j]).all() for i in range(len(flat)) for j in range(i))


@every_field
def test_fields_are_standard_normal_at_every_pixel_borders_included(field):
    torch.manual_seed(0)
    count = 40_000
    drawn = field(torch.zeros(count, 6, 7))
    assert drawn.mean(0).abs().max() < 4.5 / math.sqrt(count)
    assert (drawn.var(0) - 1).abs().max() < 4.5 * math.sqrt(2 / count)
    for row, column in ((0, 0), (0, 3), (5, 6), (3, 3)):
        assert stats.kstest(drawn[:2000, row, column].numpy(), "norm").pvalue > 1e-3


def test_smooth_fields_correlate_as_stated():
    torch.manual_seed(0)
    drawn = Smooth(1.5)(torch.zeros(20_000, 25, 25))
    centre = drawn[:, 12, 12]
    for down, across in ((0, 1), (1, 1), (0, 3), (4, 2)):
        found = (centre * drawn[:, 12 + down, 12 + across]).mean()
        expected = math.exp(-(down**2 + across**2) / (4 * 1.5**2))
        assert found.item() == pytest.approx(expected, abs=5 / math.sqrt(20_000))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_blocks_are_squares_on_a_grid_that_lies_everywhere_equally_often(size):
    torch.manual_seed(0)
    count, length = 3000, 11
    drawn = Blocks(size)(torch.zeros(count, length, length))
    for axis in (1, 2):
        edges = drawn.diff(dim=axis).ne(0)
        assert torch.equal(edges.any(3 - axis), edges.all(3 - axis))  # edges run through
        edges = edges.any(3 - axis)
        places = torch.arange(length - 1)
        for image in edges[:200]:
            at = places[image]
            assert (at.diff() == size).all()
            assert len(at) >= (length - 1) // size
        share = edges.float().mean(0)
        assert (share - 1 / size).abs().max() <= 4.5 * math.sqrt(1 / size * (1 - 1 / size) / count)


@every_field
def test_coherent_samples_keep_every_pixels_probability(field):
    torch.manual_seed(0)
    count, logits = 20_000, random_logits((4, 6), scale=2.0)
    p = logits.sigmoid()
    frequency = Mask(field).sample(logits, count).mean(1)
    assert ((frequency - p).abs() < 4 * (p * (1 - p) / count).sqrt()).all()


@pytest.mark.parametrize("field", [Blocks(4), Smooth(2.0)], ids=str)
def test_neighbours_of_coherent_samples_agree_more_often(field):
    torch.manual_seed(0)
    logits = random_logits((12, 12), scale=0.5)

    def agreement(space):
        drawn = space.sample(logits, 200)
        return (drawn[..., 1:] == drawn[..., :-1]).double().mean()

    assert agreement(Mask()) < 0.6
    assert agreement(Mask(field)) > 0.75


def test_a_field_without_coherence_draws_independent_pixels():
    torch.manual_seed(0)
    outputs, logits = every_output(Mask(), (2, 2)), random_logits((2, 2), scale=0.7)
    expected = Mask().log_prob(logits, for_each(outputs)).exp().numpy()
    for field in (Blocks(1), Smooth(0.05)):
        drawn = Mask(field).sample(logits, 20_000)
        same = (drawn.flatten(2).unsqueeze(2) == outputs.flatten(1)).all(-1)
        for row in range(2):
            counts = same[row].sum(0).numpy()
            assert stats.chisquare(counts, expected[row] * 20_000).pvalue > 1e-3


@every_field
def test_coherent_samples_are_discrete_masked_and_without_gradient(field):
    torch.manual_seed(0)
    logits = random_logits((5, 4)).float().requires_grad_()
    mask = torch.ones(2, 5, 4)
    mask[..., 2:] = 0
    drawn = Mask(field).sample(logits + 2, 7, mask)
    assert drawn.shape == (2, 7, 5, 4)
    assert drawn.dtype == torch.float32
    assert not drawn.requires_grad
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert drawn[..., 2:].eq(0).all()


@every_field
def test_sure_impossible_and_undefined_pixels_are_drawn_as_ever(field):
    logits = torch.tensor([[[torch.inf, -torch.inf, torch.nan, 60.0, -60.0]]])
    drawn = Mask(field).sample(logits, 500)
    torch.testing.assert_close(drawn, torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0]).expand_as(drawn))


def test_coherent_samples_are_where_the_fields_odds_are_below_the_logits():
    logits = torch.linspace(-80, 80, 301, dtype=torch.float64).view(1, 1, -1)
    drawn = torch.linspace(-13, 13, 499, dtype=torch.float64).view(1, -1, 1, 1)

    class Given(Field):
        def __call__(self, like):
            return drawn.expand_as(like)

    odds = torch.special.log_ndtr(drawn) - torch.special.log_ndtr(-drawn)
    for kind in (torch.float64, torch.float32):
        sampled = Mask(Given()).sample(logits.to(kind), 499)
        clear = (odds - logits.unsqueeze(1)).abs() > 1e-3
        assert torch.equal(sampled.bool()[clear], (odds < logits.unsqueeze(1))[clear])


@every_field
def test_perturbations_follow_the_field(field):
    torch.manual_seed(0)
    prediction = Prediction(Mask(field), random_logits((6, 8)))
    state = torch.get_rng_state()
    perturbed = prediction.perturb(3, 0.7)
    torch.set_rng_state(state)
    expected = prediction.logits.unsqueeze(1) + 0.7 * field(perturbed)
    torch.testing.assert_close(perturbed, expected.sigmoid())


def test_masks_without_noise_flip_coins():
    logits = random_logits((5, 4)).float()
    torch.manual_seed(3)
    drawn = Mask().sample(logits, 7)
    torch.manual_seed(3)
    assert torch.equal(drawn, ops.Bernoulli(logits.sigmoid())(7))
    torch.manual_seed(3)
    perturbed = Prediction(Mask(), logits).perturb(7, 0.5)
    torch.manual_seed(3)
    noise = torch.randn_like(logits.unsqueeze(1).expand(-1, 7, -1, -1))
    torch.testing.assert_close(perturbed, (logits.unsqueeze(1) + 0.5 * noise).sigmoid())


def test_noise_is_part_of_the_space_but_not_of_its_probabilities():
    assert Mask(Smooth(2.0)) == Mask(noise=Smooth(2.0)) != Mask()
    logits, outputs = random_logits((2, 2)), for_each(every_output(Mask(), (2, 2)))
    assert torch.equal(Mask(Blocks(4)).log_prob(logits, outputs), Mask().log_prob(logits, outputs))


@pytest.mark.parametrize(("field", "size"), [(Blocks, 0), (Smooth, 0.0), (Smooth, math.nan)])
def test_fields_without_extent_are_refused(field, size):
    with pytest.raises(ValueError, match=r"at least one pixel|positive scale"):
        field(size)


KINDS = ("LOC", "PER")
BIOES = ("O", *(f"{prefix}-{kind}" for kind in KINDS for prefix in "BIES"))
_WHOLE = re.compile("|".join(["O", *(f"S-{kind}|B-{kind}( I-{kind})* E-{kind}" for kind in KINDS)]))
_LEGAL = re.compile(f"({_WHOLE.pattern})( ({_WHOLE.pattern}))*")


@fast
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(0, 2))
def test_decoded_spans_are_the_likeliest_whole_ones(seed, length, padding):
    space = Tags(len(BIOES), BIOES)
    relaxed = random_logits((length, len(BIOES)), batch=3, seed=seed, scale=3).softmax(-1)
    decoded = space.decode(functional.pad(relaxed, (0, 0, 0, padding)))
    assert not decoded[:, length:].any()
    legal = [
        numbers
        for numbers in product(range(len(BIOES)), repeat=length)
        if _LEGAL.fullmatch(" ".join(BIOES[number] for number in numbers))
    ]
    for row, found in zip(relaxed, decoded, strict=True):
        chances = [row[range(length), numbers].log().sum() for numbers in torch.tensor(legal)]
        wanted = legal[int(torch.stack(chances).argmax())]
        assert tuple(found[:length].argmax(-1).tolist()) == wanted


@pytest.mark.parametrize("length", [1, 5])
def test_impossible_tags_still_give_whole_spans(length):
    space = Tags(len(BIOES), BIOES)
    decoded = space.decode(torch.eye(len(BIOES))[torch.tensor([[BIOES.index("I-PER")] * length])])
    assert _LEGAL.fullmatch(" ".join(BIOES[number] for number in decoded[0].argmax(-1)))


def test_tags_of_iob2_are_decoded_into_whole_spans_too():
    relaxed = torch.tensor([[[0.0, 0.3, 0.7], [0.1, 0.0, 0.9], [0.8, 0.2, 0.0]]])
    assert Tags(3, ("O", "B-PER", "I-PER")).decode(relaxed).argmax(-1).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("names", [(), ("N", "V"), ("O", "I-PER", "I-LOC", "B-LOC")])
def test_tags_of_which_all_sequences_are_allowed_are_decoded_one_by_one(names):
    """Of the last ones not all kinds can begin by ``B``, so that they are of IOB1."""
    space, relaxed = Tags(len(names) or 4, names), torch.eye(len(names) or 4)[[1, 0, 1]].unsqueeze(0)
    assert space.constraints() is None
    assert torch.equal(space.decode(relaxed), relaxed)


@pytest.mark.parametrize("candidates", [1, 4])
@pytest.mark.parametrize("event", [(5,), (2, 3)], ids=str)
def test_candidates_are_weighed_as_sums_say_and_so_are_their_derivatives(candidates, event):
    y, weights = random_logits((candidates, *event)), random_logits(event, seed=1).requires_grad_()
    expected = (y * weights.unsqueeze(1)).flatten(2).sum(2)
    torch.testing.assert_close(weighted_sum(y, weights), expected)
    assert weighted_sum(y.float(), weights).dtype == torch.float64
    direction = random_logits((candidates,), seed=2)
    found, plain = (
        torch.autograd.grad(sums, weights, direction) for sums in (weighted_sum(y, weights), expected)
    )
    torch.testing.assert_close(found, plain)
    assert torch.autograd.gradcheck(weighted_sum, (y.requires_grad_(), weights))
    assert torch.autograd.gradgradcheck(weighted_sum, (y, weights))
