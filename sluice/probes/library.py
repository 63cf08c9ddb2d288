"""Lists all probes, and applies each to a workload."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from sluice.base.errors import ContractError, SettingsError
from sluice.base.pluralize import pluralize
from sluice.base.settings import suggest_nearest
from sluice.findings.user_code import wrap_user_errors
from sluice.probes.causality import probe_causality
from sluice.probes.gradients import probe_function, probe_gradients
from sluice.probes.modes import probe_modes
from sluice.probes.padding import padding_mask, probe_padding
from sluice.probes.result import ProbeResult, skipped
from sluice.probes.schedule import probe_train_settings
from sluice.probes.seeds import probe_seeds
from sluice.probes.shards import probe_shards, split_rows
from sluice.probes.subject import Subject
from sluice.probes.tokenizers import probe_tokenizers

_NUM_RANKS = 2
"""Number of ranks for which the trainer's split of the rows is tested."""

_MAX_GRADIENT_ROWS = 2
"""Maximum number of rows with which gradients are tested. The time is proportional to this
number."""


def run_probes(subject: Subject, only: Sequence[str]) -> Iterator[ProbeResult]:
    """Yield the result of every probe, or only of the named probes, in the order of ``PROBES``.

    Raises:
        SettingsError: A name is unknown.
        ContractError: The workload breaks its contract, or its code raises.
    """
    for name in only:
        if name not in PROBES:
            raise SettingsError(
                f"Unknown probe '{name}'.{suggest_nearest(name, list(PROBES))} Known probes: "
                f"{', '.join(PROBES)}.",
                fix="Pass one or more of these names, separated by commas.",
            )
    return (_run(name, subject) for name in PROBES if not only or name in only)


def _run(name: str, subject: Subject) -> ProbeResult:
    with wrap_user_errors(f"The workload, in the probe '{name}',"):
        return PROBES[name](subject)


def _run_causality_probe(subject: Subject) -> ProbeResult:
    causal = getattr(subject.workload, "causal", None)
    examples = subject.first_examples
    return probe_causality(
        subject.network, examples.tensor, causal=causal, y=examples.targets, seed=subject.seed
    )


def _run_padding_probe(subject: Subject) -> ProbeResult:
    pad_id = getattr(subject.workload, "pad_id", None)
    x = subject.first_examples.tensor
    if x.dim() != 2 or x.is_floating_point():
        return skipped(
            "padding",
            f"Inputs of shape {tuple(x.shape)} and type {str(x.dtype).removeprefix('torch.')} are "
            "not token ids, and this probe finds padding by its token id.",
            fix="Call sluice.probes.padding.probe_padding with the padded positions.",
        )
    padded = padding_mask(x, subject.network, pad_id=pad_id)
    if padded is None:
        return skipped(
            "padding",
            "No padding token is declared, or several embeddings declare different padding tokens.",
            fix="Declare padding as pad_id of the workload, or as padding_idx of an nn.Embedding.",
        )
    if not bool(padded.any()):
        # The first rows may have no padding by chance, so more rows are searched.
        x, padded = _rows_with_padding(subject, pad_id)
        if not len(x):
            row_count = pluralize(len(subject.padding_candidates), "train row")
            return skipped("padding", f"None of {row_count} has both padding and real positions.")
    return probe_padding(subject.network, x, padded=padded, seed=subject.seed)


def _rows_with_padding(subject: Subject, pad_id: int | None) -> tuple[Tensor, Tensor]:
    """Return the first train rows with padding and other tokens, and a mask of the padding."""
    x = subject.padding_candidates.tensor
    padded = padding_mask(x, subject.network, pad_id=pad_id)
    assert padded is not None
    is_partly_padded = padded.any(dim=1) & ~padded.all(dim=1)
    rows = is_partly_padded.nonzero().flatten()[: len(subject.first_examples)]
    return x[rows], padded[rows]


def _run_tokenizers_probe(subject: Subject) -> ProbeResult:
    method = getattr(subject.workload, "tokenizers", None)
    if method is None:
        return skipped(
            "tokenizers",
            "The workload has no tokenizers().",
            why="A workload with texts can return its training and serving tokenizers from this "
            "method.",
        )
    pair = method()
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ContractError(
            f"tokenizers() must return (training, serving), got {type(pair).__name__}.",
            fix="Return both tokenizers in a tuple.",
        )
    return probe_tokenizers(*pair)


def _run_gradients_probe(subject: Subject) -> ProbeResult:
    num_rows = min(_MAX_GRADIENT_ROWS, len(subject.first_examples))
    examples = subject.first_examples.take(torch.arange(num_rows))
    result = probe_gradients(
        subject.network, subject.workload.loss, examples.tensor, examples.targets, seed=subject.seed
    )
    method = getattr(subject.workload, "custom_functions", None)
    functions = {} if method is None else method()
    for name, (function, inputs) in functions.items():
        if result.outcome != "pass":
            break
        result = probe_function(function, inputs, name=name, seed=subject.seed)
    return result


def _run_schedule_probe(subject: Subject) -> ProbeResult:
    steps = math.ceil(len(subject.train) / subject.train_settings.batch_rows)
    return probe_train_settings(subject.train_settings, steps_per_epoch=steps)


def _run_modes_probe(subject: Subject) -> ProbeResult:
    return probe_modes(subject.network, subject.first_examples.tensor, seed=subject.seed)


def _run_seeds_probe(subject: Subject) -> ProbeResult:
    return probe_seeds(
        subject.workload, subject.model_settings, subject.train_settings, seed=subject.seed
    )


def _run_shards_probe(subject: Subject) -> ProbeResult:
    num_rows, batch_rows = len(subject.train), subject.train_settings.batch_rows
    y = subject.train.targets
    has_one_label_per_row = y.dim() == 1 or (y.dim() == 2 and y.shape[1] == 1)
    return probe_shards(
        split_rows(num_rows, batch_rows=batch_rows, world_size=_NUM_RANKS, seed=subject.seed),
        num_rows=num_rows,
        labels_N=y.flatten().numpy() if has_one_label_per_row else None,
        # Of each batch with an odd number of rows, one rank gets one row more than the other rank.
        max_row_difference=math.ceil(num_rows / batch_rows),
    )


PROBES: dict[str, Callable[[Subject], ProbeResult]] = {
    "causality": _run_causality_probe,
    "padding": _run_padding_probe,
    "tokenizers": _run_tokenizers_probe,
    "gradients": _run_gradients_probe,
    "schedule": _run_schedule_probe,
    "modes": _run_modes_probe,
    "seeds": _run_seeds_probe,
    "shards": _run_shards_probe,
}
"""Probes by name, in the order in which they run."""
