"""Detects evaluation windows that overlap training windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.batches import EpochRecord, FloatFieldRecord, SketchRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import network_name
from sluice.trace.rules._helpers.sketches import common_threshold, hash_share_up_to, values_up_to


class OverlappingWindowsSettings(Settings):
    """Thresholds of the rule ``OVERLAPPING_WINDOWS``."""

    min_shared_share: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Minimum share of the compared target values that occur in training windows, "
        "for a finding. The share of the input values has the same minimum.",
    )
    min_values: int = Field(
        30,
        ge=1,
        description="Minimum number of distinct values of a target or input for a comparison.",
    )
    min_common_rows: int = Field(
        5,
        ge=1,
        description="Minimum expected number of common rows if the evaluation used training rows. "
        "With a smaller expectation, the absence of common rows is not conclusive.",
    )


@dataclass(frozen=True, slots=True)
class _SharedValues:
    """Comparison of the distinct sampled values of an evaluation field with training values."""

    num_shared: int
    """Number of values that also occur in training."""
    num_compared: int
    """Number of distinct sampled values of the evaluation that were compared."""


def _judge(rule: Rule[OverlappingWindowsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for network in sorted({r.network for r in trace.rows}):
        training = _input_epochs(trace, network, is_learning=True)
        skipped_loaders = {e.loader for e in training}
        for epoch in _input_epochs(trace, network, is_learning=False):
            if epoch.loader in skipped_loaders:
                continue
            shared = _find_shared_target(
                rule.settings, trace, epoch, [e for e in training if e.step < epoch.step]
            )
            if shared is not None:
                skipped_loaders.add(epoch.loader)  # one finding for each loader
                findings.append(_build_finding(rule, trace, network, epoch, shared))
    return tuple(findings)


def _input_epochs(trace: Trace, network: int, *, is_learning: bool) -> list[EpochRecord]:
    """Return the epochs whose first batch was an input of the network.

    Epochs are matched by step, too: equal loaders that are created for each fold have one index,
    which may then be used both for training and for evaluation.
    """
    calls = {
        (r.loader, r.step)
        for r in trace.rows
        if r.network == network and r.is_learning == is_learning
    }
    return [e for e in trace.epochs if (e.loader, e.step) in calls]


def _find_shared_target(
    settings: OverlappingWindowsSettings,
    trace: Trace,
    epoch: EpochRecord,
    training: Sequence[EpochRecord],
) -> _SharedValues | None:
    """Return the comparison of a target if all targets and inputs are shared with training.

    None if the values of any target or input are too few or not shared, if the epoch may have
    training rows, or if no target is continuous and differs from the inputs.
    """
    inputs = [f for f in epoch.fields if not f.place]
    targets = [
        f
        for f in epoch.fields
        if f.place and _is_continuous(f, training) and (not inputs or f.values != inputs[0].values)
    ]
    if not targets or not _has_only_new_rows(settings, trace, epoch, training):
        return None
    # The inputs must be shared as well: new inputs with known targets are new rows.
    matches = [_best_match(settings, field, training) for field in (*targets, *inputs)]
    is_shared = all(
        match.num_compared >= settings.min_values
        and match.num_shared >= settings.min_shared_share * match.num_compared
        for match in matches
    )
    return matches[0] if is_shared else None


def _is_continuous(field: FloatFieldRecord, training: Sequence[EpochRecord]) -> bool:
    """Whether equal values of a field must be copies, because values rarely repeat by chance.

    Quantized values repeat, and so do values that are looked up for each row.
    """
    training_fields = [f for e in training for f in e.fields if f.place == field.place]
    return bool(training_fields) and all(f.is_continuous for f in (field, *training_fields))


def _has_only_new_rows(
    settings: OverlappingWindowsSettings,
    trace: Trace,
    epoch: EpochRecord,
    training: Sequence[EpochRecord],
) -> bool:
    """Whether an epoch has no training row, although common rows would have been recorded.

    Evaluation on training rows is the subject of another rule. An epoch with as many rows as
    training is the training set, perhaps in other windows.
    """
    loaders = {e.loader for e in training}
    sizes = [loader.num_rows for loader in trace.loaders if loader.index in loaders]
    full_sizes = {e.num_indices for e in training if e.is_finished and e.num_indices}
    if min(sizes) < 1 or epoch.num_indices in full_sizes:
        return False
    rows, training_rows = _comparable_values(epoch.contents, [e.contents for e in training])
    sampled_share = hash_share_up_to(
        common_threshold([epoch.contents, *(e.contents for e in training)])
    )
    coverage = min(len(training_rows) / sampled_share / sum(sizes), 1.0)
    return not rows & training_rows and coverage * len(rows) >= settings.min_common_rows


def _best_match(
    settings: OverlappingWindowsSettings, field: FloatFieldRecord, training: Sequence[EpochRecord]
) -> _SharedValues:
    """Compare an evaluation field with the training field that contains most of its values.

    Inputs are compared only with inputs: evaluation inputs without augmentation noise may equal
    the targets of training.
    """
    pairs = [
        _comparable_values(field.values, sketches)
        for sketches in _training_sketches(training, is_input=not field.place)
    ]
    num_shared, num_compared = max(
        ((len(values & in_training), len(values)) for values, in_training in pairs),
        key=lambda pair: pair[0] / pair[1] if pair[1] >= settings.min_values else 0.0,
        default=(0, 0),
    )
    return _SharedValues(num_shared, num_compared)


def _training_sketches(
    training: Sequence[EpochRecord], *, is_input: bool
) -> Iterator[list[SketchRecord]]:
    """Yield the sketches of each tensor of each training loader, of inputs only if ``is_input``."""
    places = {(e.loader, f.place) for e in training for f in e.fields}
    for loader, place in sorted(p for p in places if not (is_input and p[1])):
        yield [
            f.values for e in training if e.loader == loader for f in e.fields if f.place == place
        ]


def _comparable_values(
    one: SketchRecord, others: Sequence[SketchRecord]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the hashes of one sketch, and of all others, up to the limit that all reach."""
    limit = common_threshold([one, *others])
    return values_up_to(limit, one), frozenset().union(*(values_up_to(limit, o) for o in others))


def _build_finding(
    rule: Rule[OverlappingWindowsSettings],
    trace: Trace,
    network: int,
    epoch: EpochRecord,
    shared: _SharedValues,
) -> TraceFinding:
    return rule.finding(
        severity="error",
        step=epoch.step + 1,
        what=f"{network_name(trace, network)}: {shared.num_shared} of {shared.num_compared} "
        f"distinct sampled target values of loader {epoch.loader} are, bit for bit, in training "
        "windows, although no evaluation window equals a training window.",
        cause="Windows of one series overlap: training windows contain the targets of the "
        "evaluation, so scores say nothing about new data.",
        fix="Split the series by time, with a gap of one window, before windows are cut from it.",
        num_shared=shared.num_shared,
        num_evaluated=shared.num_compared,
        loader=epoch.loader,
    )


OVERLAPPING_WINDOWS = Rule(
    name="evaluation windows do not overlap training windows",
    fault="train-validation leakage",
    priority=560,
    requires="Batches of loaders with continuous targets, for training and later for evaluation.",
    contradicted_by="A series that repeats itself bit for bit.",
    abstains="The inputs are new; an evaluation row equals a training row; there are as many rows "
    "as in training; the targets are the inputs, or repeat in their column; or too few rows were "
    "recorded.",
    settings=OverlappingWindowsSettings(),
    judge=_judge,
)
