"""Networks that write sequences: teacher forcing is what writing does, padding changes nothing, gradients."""

import torch

from lossnet.energies import Chain, Sum, TagLM
from lossnet.nets import BiLSTM, Decoder, Prefixed, Tagger, WordVectors
from lossnet.nets.decoder import START, prefixes, write

SYMBOLS, END = 5, 4


def network(seed=0):
    torch.manual_seed(seed)
    encoder = BiLSTM(WordVectors(torch.randn(9, 6)), hidden=4)
    return Tagger(Decoder(encoder, SYMBOLS, moves=0, reach=2), SYMBOLS).double().eval()


def sentences():
    tokens = torch.randint(2, 9, (3, 5, 1))
    tokens[1, 3:] = 0
    return tokens


def test_what_is_written_is_the_likeliest_after_itself():
    for seed in range(3):
        net, tokens = network(seed), sentences()
        written = write(net, tokens, END, longest=9)
        lengths = ((written == END).cumsum(1) == 0).sum(1) + 1
        lengths = lengths.clamp(max=written.shape[1])
        before = prefixes(written, lengths)
        with torch.no_grad():
            likeliest = net(Prefixed(tokens, before)).argmax(-1)
        assert torch.equal(likeliest[before != 0], written[before != 0])
        behind = torch.arange(written.shape[1]) >= lengths.unsqueeze(1)
        assert bool((written[behind] == END).all())


def test_padding_changes_nothing():
    net, tokens = network(), sentences()
    before = torch.tensor([[START, 2, 3, 5], [START, 4, 0, 0], [START, 2, 2, 0]])
    together = net.features(Prefixed(tokens, before))
    for row, (words, length) in enumerate([(5, 4), (3, 2), (5, 3)]):
        alone = net.features(Prefixed(tokens[row : row + 1, :words], before[row : row + 1, :length]))
        torch.testing.assert_close(together[row : row + 1, :length], alone)
        assert together[row, length:].abs().sum() == 0


def test_attention_is_what_its_formula_says():
    net, tokens = network(), sentences()[:1, :4]
    decoder = net.encoder
    before = torch.tensor([[START, 2, 5]])  # the second symbol stood for a word
    encoded = decoder.encoder(tokens).states[0]
    hidden = decoder.lstm(decoder.symbols(before))[0][0]
    expected = []
    for state, location in zip(hidden, [0, 1, 1], strict=True):
        scores = torch.stack(
            [
                state @ decoder.keys.weight @ encoded[word] / decoder.width**0.5
                + decoder.nearness[max(-2, min(2, word - location)) + 2]
                for word in range(4)
            ]
        )
        context = (scores.softmax(0).unsqueeze(1) * encoded).sum(0)
        expected.append(torch.tanh(decoder.mixed(torch.cat([state, context]))))
    torch.testing.assert_close(decoder(Prefixed(tokens, before)).states[0], torch.stack(expected))


def test_gradients_are_those_of_finite_differences():
    net, tokens = network(), sentences()
    x = Prefixed(tokens, torch.tensor([[START, 2, 3], [START, 4, 0], [START, 2, 2]]))
    for name in ("nearness", "keys.weight", "mixed.bias", "lstm.bias_hh_l0"):
        parameter = net.encoder.get_parameter(name)
        (gradient,) = torch.autograd.grad(net(x).sin().sum(), parameter)
        for place in (0, parameter.numel() - 1):
            values = []
            for step in (1e-6, -2e-6):
                with torch.no_grad():
                    parameter.view(-1)[place] += step
                    values.append(float(net(x).sin().sum()))
            with torch.no_grad():
                parameter.view(-1)[place] += 1e-6
            difference = (values[0] - values[1]) / 2e-6
            assert abs(difference - float(gradient.view(-1)[place])) < 1e-6


def test_energies_of_tags_read_its_states():
    net, tokens = network(), sentences()
    energy = Sum(net.encoder, Chain(net.encoder.width, SYMBOLS), TagLM(SYMBOLS, hidden=3)).double()
    x = Prefixed(tokens, torch.tensor([[START, 2, 3], [START, 4, 0], [START, 2, 2]]))
    y = torch.rand(3, 2, 3, SYMBOLS, dtype=torch.float64) * (x.before != 0)[:, None, :, None]
    assert energy(x, y).shape == (3, 2)
