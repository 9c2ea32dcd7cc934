import math

import pytest
import torch

from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.nets import MLP

FEATURES, LABELS, HIDDEN = 3, 4, 5


def make(*terms, inputs=2):
    torch.manual_seed(0)
    built = [term() for term in terms]
    return Sum(MLP(inputs, hidden=FEATURES, layers=1), *built).double()


def local():
    return Local(FEATURES, LABELS)


def interaction():
    return LabelInteraction(LABELS, HIDDEN)


def biased():
    term = LabelInteraction(LABELS, HIDDEN, bias=True)
    assert not term.mixing.bias.any()  # it starts at zero
    torch.nn.init.normal_(term.mixing.bias)
    return term


def conditioned():
    return LabelInteraction(LABELS, HIDDEN, features=FEATURES)


every_energy = pytest.mark.parametrize(
    "terms",
    [
        (local,),
        (interaction,),
        (conditioned,),
        (biased,),
        (local, interaction),
        (local, interaction, conditioned),
    ],
    ids=lambda terms: "+".join(term.__name__ for term in terms),
)


def data(batch=3, candidates=4):
    torch.manual_seed(1)
    x = torch.randn(batch, 2, dtype=torch.float64)
    return x, torch.rand(batch, candidates, LABELS, dtype=torch.float64)


def by_hand(term, features, y):
    """One term's energy of one candidate, in loops over Python numbers."""
    if isinstance(term, Local):
        weights = term.weights.weight.tolist()
        return sum(y[i] * sum(weights[i][j] * features[j] for j in range(FEATURES)) for i in range(LABELS))
    mixing, weights = term.mixing.weight.T.tolist(), term.weights.weight[0].tolist()
    total = 0.0
    for h in range(HIDDEN):
        mixed = sum(mixing[h][i] * y[i] for i in range(LABELS))
        if term.mixing.bias is not None:
            mixed += term.mixing.bias[h].item()
        if term.condition is not None:
            shift = term.condition.weight[h].tolist()
            mixed += sum(shift[j] * features[j] for j in range(FEATURES))
        total += weights[h] * math.log1p(math.exp(mixed))
    return total


@every_energy
def test_energies_match_explicit_loops(terms):
    energy, (x, y) = make(*terms), data()
    features = energy.encoder(x).tolist()
    expected = [
        [sum(by_hand(term, row, one) for term in energy.terms) for one in candidates]
        for row, candidates in zip(features, y.tolist(), strict=True)
    ]
    torch.testing.assert_close(energy(x, y), torch.tensor(expected, dtype=torch.float64))


@every_energy
def test_gradients_in_outputs_and_inputs_are_correct(terms):
    energy, (x, y) = make(*terms), data()
    assert torch.autograd.gradcheck(energy, (x.requires_grad_(), y.requires_grad_()))


@every_energy
def test_gradients_in_every_parameter_are_correct(terms):
    energy, (x, y) = make(*terms), data(batch=2, candidates=2)
    parameters = tuple(p for term in energy.terms for p in term.parameters())
    assert torch.autograd.gradcheck(lambda *_: energy(x, y), parameters)


def test_second_derivatives_in_outputs_are_correct():
    energy, (x, y) = make(local, conditioned), data(batch=1, candidates=2)
    assert torch.autograd.gradgradcheck(lambda at: energy(x, at), y.requires_grad_())


@every_energy
def test_candidates_together_equal_candidates_alone(terms):
    energy, (x, y) = make(*terms), data()
    at = energy.at(x)
    together = at(y)
    assert together.shape == (3, 4)
    for k in range(4):
        torch.testing.assert_close(together[:, k : k + 1], at(y[:, [k]]))
    for row in range(3):
        torch.testing.assert_close(together[row : row + 1], energy(x[[row]], y[[row]]))


def test_inputs_are_encoded_once_for_all_candidates():
    energy, (x, y) = make(local, interaction, conditioned), data()
    calls = []
    energy.encoder.register_forward_hook(lambda *_: calls.append(1))
    at = energy.at(x)
    for k in range(4):
        at(y[:, [k]])
    assert len(calls) == 1


def test_unconditioned_interaction_never_sees_the_input():
    (x, y), energy = data(), make(interaction)
    torch.testing.assert_close(energy(x, y), energy(x + 1, y))
    assert not torch.allclose(make(conditioned)(x, y), make(conditioned)(x + 1, y))


def test_conditioning_with_zero_weights_is_the_unconditioned_interaction():
    (x, y), energy = data(), make(conditioned)
    torch.nn.init.zeros_(energy.terms[0].condition.weight)
    plain = make(interaction)
    plain.terms[0].load_state_dict(energy.terms[0].state_dict(), strict=False)
    torch.testing.assert_close(energy(x, y), plain(x, y))


def test_unary_logits_are_minus_the_gradient_of_the_local_energy():
    (x, y), energy = data(), make(local)
    at = y.requires_grad_()
    (gradient,) = torch.autograd.grad(energy(x, at).sum(), at)
    for k in range(4):
        torch.testing.assert_close(energy.unary_logits(x), -gradient[:, k])


def test_unary_logits_are_those_of_the_distribution_that_the_local_energy_defines():
    (x, _), energy = data(), make(local)
    outputs = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * LABELS)
    weights = (-energy(x, outputs.expand(3, -1, -1))).softmax(1)
    torch.testing.assert_close(energy.unary_logits(x).sigmoid(), weights @ outputs)


def test_unary_logits_are_found_behind_other_terms():
    (x, _), energy = data(), make(interaction, local)
    expected = -energy.terms[1].prepare(energy.encoder(x))
    torch.testing.assert_close(energy.unary_logits(x), expected)


def test_without_a_local_term_there_are_no_unary_logits():
    with pytest.raises(ValueError, match="Sum has no local term"):
        make(interaction, conditioned).unary_logits(data()[0])


def test_every_parameter_of_encoder_and_terms_is_trained():
    energy, (x, y) = make(local, interaction, conditioned), data()
    energy(x, y).sum().backward()
    assert all(p.grad is not None and p.grad.ne(0).any() for p in energy.parameters())
    assert len([*energy.parameters()]) == 2 + 1 + 2 + 3
