"""A learned loss as a ``Trainer``'s ``compute_loss_func`` and callback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from lossnet import files
from lossnet.integrations.hf.alignment import Aligned, Classes, align, count_items, known_space, number_of
from lossnet.learned_loss import LearnedLoss
from lossnet.nets import Tokens
from lossnet.spaces import MultiLabel

#: what the energy reads, the model's last hidden states or the model's own inputs
Reads = Literal["features", "inputs"]

#: file of a checkpoint
STATE = "learned_loss.pt"


class StructuredLoss(TrainerCallback):  # type: ignore[misc]  # transformers' types are not followed
    """Train a ``Trainer``'s model on a `LearnedLoss`: its ``compute_loss_func`` and one of its ``callbacks``.

    The energy takes its steps after each step of the model's optimizer, on all micro-batches of that step and
    of all processes as one batch: with gradient accumulation nothing changes but memory.  The model's loss is
    scaled as ``Trainer``'s own, by the number of labels (of tags: of tagged words) in the accumulated batch:
    with an energy weight of 0 the model trains as without us.

    Args:
        learned_loss: of a `MultiLabel` or a `Tags` space; it becomes ``deferred``.
        reads: inputs of the energy.  ``"features"``: the last hidden states of the model's encoder, held
            fixed: for label sets their mean over tokens ``(batch, width)``, for tags `lossnet.nets.Tokens` of
            the words' first pieces.  ``"inputs"``: the model's inputs by name, for an energy with an encoder
            of its own; for tags also ``words``, the places of words among the pieces, ``(batch, words)``.

    **Requirements**

    - Build the energy from the same seed in all processes, as `LearnedLoss` says.  Several GPUs in one
      process (`torch.nn.DataParallel`) are refused: start with ``torchrun`` or ``accelerate launch``.
    - Checkpoints have the energy and its optimizer in ``learned_loss.pt``.  Resuming reads it from the
      checkpoint of that step in ``output_dir``; give `resume_from` another folder.  `StructuredLossTrainer`
      knows the folder by itself.
    - Labels are ``(batch, labels)`` of 0 and 1, or tags ``(batch, pieces)``, −100 for all but the first
      piece of each word, as `transformers.DataCollatorForTokenClassification` gives them.

    **Example**

    >>> from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    >>> from lossnet.energies import LabelInteraction, Local, Sum
    >>> from lossnet.nets import MLP
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    >>> model = BertForSequenceClassification(BertConfig(vocab_size=30, num_labels=3, **sizes))
    >>> energy = Sum(MLP(16, hidden=8, layers=1), Local(8, labels=3), LabelInteraction(3, hidden=4))
    >>> structured = StructuredLoss(LearnedLoss(energy, space=MultiLabel(3)))
    >>> args = TrainingArguments("unused", report_to=[], use_cpu=True)
    >>> trainer = Trainer(model, args, compute_loss_func=structured, callbacks=[structured])
    """

    def __init__(self, learned_loss: LearnedLoss, reads: Reads = "features") -> None:
        self.space = known_space(learned_loss.space)
        if reads not in get_args(Reads):
            raise ValueError(f"reads is {reads!r}; give one of {', '.join(get_args(Reads))}")
        self.learned_loss = learned_loss
        self.reads = reads
        #: folder of the checkpoint to go on from, where it is not in ``output_dir``
        self.resume_from: Path | None = None
        learned_loss.deferred = True
        self._called = False
        self._model: Any = None
        self._hooks: list[Any] = []
        self._inputs: dict[str, Tensor] = {}
        self._hidden: Tensor | None = None

    def __call__(
        self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the model's loss on a micro-batch, ``()``, as its part of the accumulated batch's mean."""
        if labels is None:
            raise ValueError("the batch has no labels; name their column `labels`")
        if self._model is None:
            raise RuntimeError("no model is watched; give the same StructuredLoss to `callbacks`")
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        aligned = align(self.space, logits, labels)
        self._called = True
        self.learned_loss.train(self._model.training)
        loss: Tensor = self.learned_loss(
            self._energy_inputs(aligned), aligned.logits, aligned.y, aligned.mask
        )
        items = count_items(labels) if num_items_in_batch is None else num_items_in_batch
        return loss * (len(labels) / items)

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if args.n_gpu > 1:
            raise ValueError(
                f"{args.n_gpu} GPUs in one process would each have a part of a batch; start one process for "
                "each with torchrun or `accelerate launch`, or hide all but one (CUDA_VISIBLE_DEVICES=0)"
            )
        self._watch(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._watch(model)
        self.learned_loss.to(args.device)
        self.learned_loss.forget()
        if state.global_step:
            given = self.resume_from or args.resume_from_checkpoint
            self._load(Path(given) if given else _checkpoint(args, state), state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.learned_loss.forget()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._called:
            raise RuntimeError(
                "the learned loss was not asked; give the StructuredLoss as `compute_loss_func`"
            )
        self.learned_loss.step()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = _checkpoint(args, state)
        if not args.should_save or args.save_only_model or not folder.is_dir():  # trials are not resumed
            return
        content = {"step": state.global_step, "learned_loss": self.learned_loss.state_dict()}
        with files.replaced(folder / STATE) as beside:
            torch.save(content, beside)

    def _load(self, folder: Path, step: int) -> None:
        path = folder / STATE
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is not there: the checkpoint was written without a learned loss, or not to its end; "
                "resume from another one, or set `resume_from` of the StructuredLoss to its folder"
            )
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["step"] != step:
            raise ValueError(
                f"{path} is of step {content['step']}, and the training goes on from step {step}"
            )
        self.learned_loss.load_state_dict(content["learned_loss"])

    def _watch(self, model: Any) -> None:
        """Note the inputs and hidden states of a model's passes, and of no other one's."""
        if model is None or model is self._model:
            return
        if self.learned_loss.energy_loss is not None:
            raise ValueError(
                "the energy was trained beside another model; make a new learned loss for each model, and a "
                "trainer of its own for each trial of a search (`model_init`)"
            )
        _configure(model, self.space)
        for hook in self._hooks:
            hook.remove()
        self._model = model
        self._hooks = [model.register_forward_pre_hook(self._note_inputs, with_kwargs=True)]
        if self.reads == "features":
            self._hooks.append(_encoder(model).register_forward_hook(self._note_hidden))

    def _note_inputs(self, model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        tensors = {name: value for name, value in kwargs.items() if isinstance(value, Tensor)}
        self._inputs = {name: value for name, value in tensors.items() if name != "num_items_in_batch"}

    def _note_hidden(self, encoder: nn.Module, args: Any, output: Any) -> None:
        self._hidden = output[0].detach()

    def _energy_inputs(self, aligned: Aligned) -> Any:
        """Return what the energy reads of the model's last pass."""
        if self.reads == "inputs":
            return self._inputs if aligned.places is None else {**self._inputs, "words": aligned.places}
        if self._hidden is None:
            raise RuntimeError("no pass of the model was seen; give the loss the Trainer's own outputs")
        if aligned.mask is not None:
            states = aligned.of_words(self._hidden) * aligned.mask.unsqueeze(2)
            return Tokens(states, states, aligned.mask)
        mask = self._inputs.get("attention_mask")
        if mask is None:
            return self._hidden.mean(1)
        mask = mask.unsqueeze(2).to(self._hidden.dtype)
        return (self._hidden * mask).sum(1) / mask.sum(1).clamp(min=1)


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _encoder(model: Any) -> nn.Module:
    """Return the part of a model under its head, inside of adapters, too."""
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    encoder: nn.Module = getattr(whole, "base_model", whole)
    if encoder is whole:
        raise ValueError(
            f"{type(whole).__name__} has no encoder under a head (no `base_model`); let the energy have its "
            'own and read the model\'s inputs: reads="inputs"'
        )
    return encoder


def _configure(model: Any, space: Classes) -> None:
    """Check that a model's outputs are those of the space, and say in its config what they are."""
    config = getattr(model, "config", None)
    if config is None:
        return
    expected = number_of(space)
    if config.num_labels != expected:
        raise ValueError(
            f"the model has {config.num_labels} labels, the learned loss {expected}; load the model with "
            f"num_labels={expected}"
        )
    if isinstance(space, MultiLabel):
        kind = "multi_label_classification"
        if config.problem_type not in (None, kind):
            raise ValueError(f"the model's problem_type is {config.problem_type}; set it to {kind}")
        config.problem_type = kind
