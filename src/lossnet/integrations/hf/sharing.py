"""What a saved model brings with it: thresholds in its config, and a card."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard

from lossnet.decoding import tune_label_thresholds, tune_threshold
from lossnet.integrations.hf.alignment import Classes, align, predicted
from lossnet.spaces import MultiLabel, Tags

#: what a model's main input is called, to what it is about
_KINDS = {"input_ids": "text", "pixel_values": "image", "input_values": "audio", "input_features": "audio"}
#: what evaluation logs beside metrics; a loss of ours compares with no other one
_NO_METRICS = (
    "loss",
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "jit_compilation_time",
    "model_preparation_time",
)

_CODE = """
## Prediction

```python
from transformers import pipeline

{code}
```
"""
_LABELS = """classify = pipeline("{task}", model="{name}", top_k=None)  # each label's chance
config = classify.model.config
least = dict(zip(config.id2label.values(), config.thresholds))
print([one["label"] for one in classify(["…"])[0] if one["score"] >= least[one["label"]]])"""
_UNTUNED = """classify = pipeline("{task}", model="{name}", top_k=None)  # each label's chance
print([one["label"] for one in classify(["…"])[0] if one["score"] >= 0.5])"""
_TAGS = """tag = pipeline("token-classification", model="{name}", aggregation_strategy="first")
print(tag("…"))"""


def tune_thresholds(
    trainer: Any, dataset: Any = None, goal: str = "f1", per_label: bool = False
) -> list[float]:
    """Tune thresholds of a ``Trainer``'s classifier of label sets, and keep them in its config.

    Saved with the model, they are ``config.thresholds``, one for each label, to whoever loads it with plain
    ``transformers``.

    Args:
        trainer: any `transformers.Trainer`.
        dataset: validation data; the trainer's ``eval_dataset`` by default.
        goal: of the one threshold for all labels, as `lossnet.decoding.tune_threshold` has them.
        per_label: whether each label gets its own, with the highest F1 of that label; for large data.
    """
    dataset = trainer.eval_dataset if dataset is None else dataset
    if dataset is None:
        raise ValueError(
            "thresholds are tuned on validation data; give a dataset, or the trainer an eval_dataset"
        )
    config = trainer.model.config
    logits, labels = predicted(trainer.predict(dataset))
    aligned = align(MultiLabel(config.num_labels), logits, labels)
    chances, truth = aligned.logits.float().sigmoid(), aligned.y.float()
    shared = tune_threshold(chances, truth, goal=goal)
    thresholds = [shared] * config.num_labels
    if per_label:
        thresholds = list(tune_label_thresholds(chances, truth, shared))
    config.thresholds = thresholds
    return thresholds


def complete_card(trainer: Any, space: Classes, dataset: str | Sequence[str] | None) -> None:
    """Add to a ``Trainer``'s model card the pipeline tag, metrics as a model index, and how to predict."""
    path = Path(trainer.args.output_dir) / "README.md"
    card = ModelCard.load(path)
    kind = _KINDS.get(getattr(trainer.model, "main_input_name", "input_ids"), "text")
    task = "token-classification" if isinstance(space, Tags) else f"{kind}-classification"
    name = trainer.hub_model_id or path.parent.resolve().name
    data = dataset if isinstance(dataset, str) else ", ".join(dataset or ["evaluation data"])
    card.data.library_name = "transformers"
    card.data.pipeline_tag = task
    card.data.tags = sorted({*(card.data.tags or []), "lossnet"})
    card.data.model_name = name.rpartition("/")[2]
    card.data.eval_results = [
        EvalResult(
            task_type=task,
            dataset_type=re.sub(r"\W+", "-", data.lower()),
            dataset_name=data,
            metric_type=metric,
            metric_name=metric,
            metric_value=value,
        )
        for metric, value in _last_metrics(trainer.state.log_history).items()
    ]
    tuned = getattr(trainer.model.config, "thresholds", None) is not None
    code = _TAGS if isinstance(space, Tags) else _LABELS if tuned else _UNTUNED
    card.text += _CODE.format(code=code.format(task=task, name=name))
    card.save(path)


def _last_metrics(log_history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of the last evaluation, by their names without ``eval_``."""
    last = next((logs for logs in reversed(log_history) if "eval_runtime" in logs), {})
    named = {name.removeprefix("eval_"): value for name, value in last.items() if name.startswith("eval_")}
    return {name: value for name, value in named.items() if name not in _NO_METRICS}
