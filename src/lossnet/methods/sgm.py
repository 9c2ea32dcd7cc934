"""Label sets written label by label: SGM (Yang et al. 2018), and in any order: OCD (Sabour et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lossnet.methods.base import Method, Stage, Update
from lossnet.methods.spec import MethodSpec
from lossnet.nets import linear
from lossnet.spaces import Batch, MultiLabel
from lossnet.trees import Tree

#: sequences that the search keeps (the paper's beam)
BEAM = 5
#: width of labels' embeddings and of the decoder
WIDTH = 128

#: the decoder's memory, ``(rows, width)`` each
State = tuple[Tensor, Tensor]


class LabelSequence(nn.Module):
    """A decoder that writes a set as a sequence of labels and an end (SGM §2).

    ::

        s_t = LSTM(s_{t−1}, [g_t; T(x)])
        p_t = softmax(W tanh(W_s s_t + W_c T(x)) + I_t)      I_t = −∞ for labels that are written already
        g_t = (1 − H) ⊙ e(y_{t−1}) + H ⊙ Σ_l p_{t−1}(l) e_l  H = σ(W_1 e(y_{t−1}) + W_2 Σ_l p_{t−1}(l) e_l)

    ``g_t`` is the paper's global embedding, by which an uncertain step is not taken for a certain one.  The
    paper attends to the words of a text; here the context is the one vector ``T(x)`` of the encoder.

    Args:
        encoder: gives features ``T(x)`` of whole instances, ``(batch, encoder.width)``.
        labels: how many there are.
        width: of embeddings and of the decoder.

    >>> from lossnet.nets import MLP
    >>> net = LabelSequence(MLP(4, hidden=8, layers=1), labels=3, width=5)
    >>> net.losses(torch.zeros(2, 4), torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])).shape
    torch.Size([2])
    """

    def __init__(self, encoder: nn.Module, labels: int, width: int = WIDTH) -> None:
        super().__init__()
        self.encoder, self.labels = encoder, labels
        features: int = encoder.width  # type: ignore[assignment]
        self.start = linear(features, width)
        self.embeddings = nn.Embedding(labels + 1, width)  # the last one is that of the beginning
        self.cell = nn.LSTMCell(width + features, width)
        self.from_state, self.from_context = linear(width, width), linear(features, width, bias=False)
        self.gate = linear(2 * width, width)
        self.output = linear(width, labels + 1)  # the last one is the end
        #: how often training has seen each label, and the most of them in one set
        self.register_buffer("counts", torch.zeros(labels))
        self.register_buffer("longest", torch.ones(()))
        self.counts: Tensor
        self.longest: Tensor

    def begin(self, context: Tensor) -> tuple[Tensor, State]:
        """Return the first input ``(rows, width)`` and the state before the first label."""
        first = self.embeddings.weight[-1].expand(len(context), -1)
        memory = self.start(context)
        return first, (torch.tanh(memory), memory)

    def step(self, context: Tensor, given: Tensor, state: State, written: Tensor) -> tuple[Tensor, State]:
        """Return log-probabilities ``(rows, labels + 1)`` of the next label or the end, and the state."""
        hidden, memory = self.cell(torch.cat([given, context], 1), state)
        logits = self.output(torch.tanh(self.from_state(hidden) + self.from_context(context)))
        forbidden = torch.cat([written > 0, torch.zeros_like(written[:, :1], dtype=torch.bool)], 1)
        return logits.masked_fill(forbidden, -torch.inf).log_softmax(1), (hidden, memory)

    def embed(self, label: Tensor, log_probs: Tensor) -> Tensor:
        """Return the global embedding ``(rows, width)`` of labels ``(rows,)`` and their step."""
        own = self.embeddings(label)
        expected = log_probs[:, :-1].exp() @ self.embeddings.weight[:-1]
        gate = torch.sigmoid(self.gate(torch.cat([own, expected], 1)))
        mixed: Tensor = (1 - gate) * own + gate * expected
        return mixed

    def sequences(self, truth: Tensor) -> tuple[Tensor, Tensor]:
        """Return label sets ``(batch, labels)`` as sequences, and where these are real, ``(batch, steps)``.

        Frequent labels come first, as in the paper; the end has the number ``labels``.
        """
        rank = self.counts.argsort(descending=True, stable=True).argsort().to(truth)
        keys = torch.where(truth > 0, rank, self.labels + 1)
        keys = torch.cat([keys, torch.full_like(keys[:, :1], self.labels)], 1)  # the end, behind the labels
        size = truth.sum(1, keepdim=True)
        steps = int(size.max()) + 1
        return keys.argsort(1)[:, :steps], torch.arange(steps, device=truth.device) <= size

    def losses(self, x: Tree, truth: Tensor) -> Tensor:
        """Return ``−Σ_t log p_t(y_t | y_1 … y_{t−1}, x)`` of label sets, their end included, ``(batch,)``."""
        context = self.encoder(x)
        given, state = self.begin(context)
        written, total = torch.zeros_like(truth), truth.new_zeros(len(truth))
        sequences, real = self.sequences(truth)
        for label, is_real in zip(sequences.unbind(1), real.unbind(1), strict=True):
            log_probs, state = self.step(context, given, state, written)
            chosen = log_probs.gather(1, label.unsqueeze(1)).squeeze(1)
            total = total - torch.where(is_real, chosen, 0)  # rows that have ended count no more
            given, written = self.embed(label, log_probs), written + self._as_set(label, written)
        return total

    def completion_losses(self, x: Tree, truth: Tensor) -> Tensor:
        """Return ``Σ_t KL(π*_t ‖ p_t)`` along sequences drawn from the network itself, ``(batch,)``.

        ``π*_t`` is uniform over what leads to the best end from what is drawn so far: to the fewest labels
        too many and too few, where Sabour et al. (2019) have the edit distance of sequences.  These are the
        true labels that are missing, in whatever order (Tsai & Lee 2020), and the end when none is.
        """
        context = self.encoder(x)
        given, state = self.begin(context)
        written, total = torch.zeros_like(truth), truth.new_zeros(len(truth))
        ended = torch.zeros_like(truth[:, 0], dtype=torch.bool)
        for _ in range(int(self.longest) + 1):
            log_probs, state = self.step(context, given, state, written)
            missing = truth * (1 - written)
            best = torch.cat([missing, (missing.sum(1, keepdim=True) == 0).to(truth)], 1)
            wanted = torch.where(best > 0, log_probs, 0).sum(1) / best.sum(1)
            total = total - torch.where(ended, 0, wanted + best.sum(1).log())
            label = torch.multinomial(log_probs.detach().exp(), 1).squeeze(1)
            given, written = self.embed(label, log_probs), written + self._as_set(label, written)
            ended = ended | (label == self.labels)
        return total

    def search(self, x: Tree, beam: int = BEAM) -> tuple[Tensor, Tensor]:
        """Return the likeliest sequences as sets ``(batch, beam, labels)``, and their log-probabilities.

        None is longer than the largest set of training.
        """
        context = self.encoder(x)
        rows, end, last = len(context), self.labels, int(self.longest)
        offsets = beam * torch.arange(rows, device=context.device).unsqueeze(1)
        context = context.repeat_interleave(beam, 0)
        given, state = self.begin(context)
        written = context.new_zeros(rows * beam, end)
        scores = context.new_full((rows, beam), -torch.inf)
        scores[:, 0] = 0  # at first, all sequences of a row are the same one
        only_end = torch.where(torch.arange(end + 1, device=context.device) == end, 0.0, -torch.inf)
        ended = torch.zeros_like(written[:, :1], dtype=torch.bool)
        for step in range(last + 1):
            log_probs, state = self.step(context, given, state, written)
            following = torch.where(ended, only_end, log_probs + (only_end if step == last else 0))
            scores, best = (scores.unsqueeze(2) + following.view(rows, beam, -1)).flatten(1).topk(beam, 1)
            parent, label = (best // (end + 1) + offsets).flatten(), (best % (end + 1)).flatten()
            state = (state[0][parent], state[1][parent])
            written = written[parent] + self._as_set(label, written)
            given, ended = self.embed(label, log_probs[parent]), (label == end).unsqueeze(1)
            if ended.all():
                break
        return written.view(rows, beam, -1), scores

    def _as_set(self, label: Tensor, like: Tensor) -> Tensor:
        """Return labels ``(rows,)`` as sets ``(rows, labels)``; the end is the empty one."""
        return F.one_hot(label, self.labels + 1)[:, :-1].to(like)

    def count(self, seen: Tensor, sizes: Tensor) -> None:
        """Add what training sees: how often each label, ``(labels,)``, and sets of each size from 0 on."""
        self.counts += seen
        largest = (torch.arange(len(sizes), device=sizes.device) * (sizes > 0)).max()
        torch.maximum(self.longest, largest.to(self.longest), out=self.longest)


class SGM(Method):
    """A network that writes the labels of an instance one after the other (SGM; also called Seq2Seq).

    It is trained on one of

    ``likelihood``
        ``−log p`` of the truth, written with frequent labels first.
    ``ocd``
        Optimal completion distillation: sequences are drawn from the network, and each step learns which
        labels of the truth are missing, in no order (`LabelSequence.completion_losses`).

    Both predict by beam search.  The probability of a label is that of the found sequences which have it,
    relative to all that were found; the papers take the likeliest sequence, which is what 0.5 decides for
    wherever one outweighs the others.

    Args:
        task_net: the decoder and its encoder.
        space: sets of labels.
        loss: ``likelihood`` or ``ocd``.

    >>> from lossnet.nets import MLP
    >>> method = SGM(LabelSequence(MLP(4, hidden=8, layers=1), labels=3), MultiLabel(3))
    >>> _ = [update.loss for update in method.updates(Batch(torch.zeros(2, 4), torch.eye(3)[:2]))]
    >>> method.task_net.counts.tolist(), method.predict(torch.zeros(5, 4)).shape
    ([1.0, 1.0, 0.0], torch.Size([5, 3]))
    """

    predictors = ("task_net",)
    task_net: LabelSequence

    def __init__(
        self,
        task_net: LabelSequence,
        space: MultiLabel,
        loss: Literal["likelihood", "ocd"] = "likelihood",
    ) -> None:
        super().__init__()
        self.space, self.task_net, self.loss = space, task_net, loss

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("task net", ("task_net",), self.updates, self.predict),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        seen = batch.y.sum(0), F.one_hot(batch.y.sum(1).long(), self.task_net.labels + 1).sum(0).to(batch.y)
        self.task_net.count(*(seen if self.total is None else self.total(seen)))
        losses = self.task_net.completion_losses if self.loss == "ocd" else self.task_net.losses
        yield Update("task_net", batch.mean(losses(batch.x, batch.y)))

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        sets, scores = self.task_net.search(x)
        return (sets * scores.softmax(1).unsqueeze(2)).sum(1).clamp(max=1)


SPEC = MethodSpec(
    "sgm",
    SGM,
    "a network that writes labels one after the other (label sets only)",
    losses={"likelihood": None, "ocd": None},
    rates={"task_net": "task_lr"},
    search=("task_dropout",),
    build=lambda parts: SGM(
        LabelSequence(parts.encoder(), parts.task.output.logits),
        parts.space,  # type: ignore[arg-type]
        parts.loss,  # type: ignore[arg-type]
    ),
    spaces=(MultiLabel,),
)
