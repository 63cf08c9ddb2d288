"""Every probe, and what each asks of a workload (TRACE-3 to TRACE-7, TRACE-11)."""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from sluice.base.errors import ContractError, SettingsError
from sluice.base.settings import nearest
from sluice.findings.user_code import users_code
from sluice.probes.causality import probe_causality
from sluice.probes.gradients import probe_function, probe_gradients
from sluice.probes.modes import probe_modes
from sluice.probes.padding import padding_of, probe_padding
from sluice.probes.result import ProbeResult, skipped
from sluice.probes.schedule import probe_train_settings
from sluice.probes.seeds import probe_seeds
from sluice.probes.shards import probe_shards, split_rows
from sluice.probes.subject import Subject
from sluice.probes.tokenizers import probe_tokenizers

_RANKS = 2
"""Processes that the trainer's split is tried with."""

_GRADIENT_ROWS = 2


def run_probes(subject: Subject, only: Sequence[str]) -> Iterator[ProbeResult]:
    """Yield the answer to every probe, or to those that are named, in the library's order.

    Raises:
        SettingsError: A name is not known.
        ContractError: The workload breaks its contract, or its own code raises.
    """
    for name in only:
        if name not in PROBES:
            raise SettingsError(
                f"There is no probe '{name}'.{nearest(name, list(PROBES))} Known: "
                f"{', '.join(PROBES)}.",
                fix="Name one or more of these, with commas between them.",
            )
    return (_ask(name, subject) for name in PROBES if not only or name in only)


def _ask(name: str, subject: Subject) -> ProbeResult:
    with users_code(f"The workload, asked by the probe '{name}',"):
        return PROBES[name](subject)


def _causality(subject: Subject) -> ProbeResult:
    causal = getattr(subject.workload, "causal", None)
    few = subject.few
    return probe_causality(subject.network, few.x, causal=causal, y=few.y, seed=subject.seed)


def _padding(subject: Subject) -> ProbeResult:
    pad_id = getattr(subject.workload, "pad_id", None)
    x = subject.few.x
    padded = padding_of(x, subject.network, pad_id=pad_id)
    if padded is None:
        kind = "numbers" if x.is_floating_point() else "tokens"
        return skipped(
            "padding",
            "TRACE-4",
            f"Inputs {tuple(x.shape)} are {kind} and nothing declares padding among them.",
            why="Padding has to be declared: pad_id on the workload, or padding_idx of an "
            "nn.Embedding.",
        )
    if not bool(padded.any()):
        # The first rows may be long by chance.
        x, padded = _padded_rows(subject, pad_id)
        if not len(x):
            return skipped("padding", "TRACE-4", "No train row has padding.")
    return probe_padding(subject.network, x, padded=padded, seed=subject.seed)


def _padded_rows(subject: Subject, pad_id: int | None) -> tuple[Tensor, Tensor]:
    """Return the first rows with padding among all train rows, and where it is."""
    padded = padding_of(subject.train.x, subject.network, pad_id=pad_id)
    assert padded is not None
    mixed = (padded.any(dim=1) & ~padded.all(dim=1)).nonzero().flatten()
    rows = mixed[: len(subject.few)]
    return subject.train.x[rows], padded[rows]


def _tokenizers(subject: Subject) -> ProbeResult:
    offer = getattr(subject.workload, "tokenizers", None)
    if offer is None:
        return skipped(
            "tokenizers",
            "TRACE-3",
            "The workload offers no tokenizers.",
            why="One that tokenizes text returns the pair of training and serving from "
            "tokenizers().",
        )
    pair = offer()
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ContractError(
            f"tokenizers() must return (training, serving), got {type(pair).__name__}.",
            fix="Return the two, as a tuple.",
        )
    return probe_tokenizers(*pair)


def _gradients(subject: Subject) -> ProbeResult:
    few, rows = subject.few, slice(0, _GRADIENT_ROWS)
    answer = probe_gradients(
        subject.network, subject.workload.loss, few.x[rows], few.y[rows], seed=subject.seed
    )
    offer = getattr(subject.workload, "custom_functions", None)
    functions = {} if offer is None else offer()
    for name, (function, inputs) in functions.items():
        if answer.outcome != "pass":
            break
        answer = probe_function(function, inputs, name=name, seed=subject.seed)
    return answer


def _schedule(subject: Subject) -> ProbeResult:
    steps = -(-len(subject.train) // subject.training.batch_rows)
    return probe_train_settings(subject.training, steps_per_epoch=steps)


def _modes(subject: Subject) -> ProbeResult:
    return probe_modes(subject.network, subject.few.x, seed=subject.seed)


def _seeds(subject: Subject) -> ProbeResult:
    return probe_seeds(subject.workload, subject.model, subject.training, seed=subject.seed)


def _shards(subject: Subject) -> ProbeResult:
    rows, batch = len(subject.train), subject.training.batch_rows
    y = subject.train.y
    one_label = y.dim() == 1 or (y.dim() == 2 and y.shape[1] == 1)
    return probe_shards(
        split_rows(rows, batch_rows=batch, world=_RANKS, seed=subject.seed),
        num_rows=rows,
        labels_N=y.flatten().numpy() if one_label else None,
        # Ranks take equal numbers of steps; a batch of odd size leaves one row more to one.
        most_uneven_rows=-(-rows // batch),
    )


PROBES: dict[str, Callable[[Subject], ProbeResult]] = {
    "causality": _causality,
    "padding": _padding,
    "tokenizers": _tokenizers,
    "gradients": _gradients,
    "schedule": _schedule,
    "modes": _modes,
    "seeds": _seeds,
    "shards": _shards,
}
"""By name, in the order in which they are asked."""
