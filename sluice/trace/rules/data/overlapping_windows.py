"""Detects evaluation windows that overlap training windows.

Overlapping windows are not equal rows, but they contain the same values of a series. So the rule
compares individual values of targets and inputs, bit for bit.
"""

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
        description="A finding requires that at least this share of the compared values of each "
        "target occur in training windows. The same minimum applies to the values of the input.",
    )
    min_values: int = Field(
        30,
        ge=1,
        description="A finding requires that at least this number of distinct values of each "
        "target, and of the input, were compared.",
    )
    min_expected_common_rows: int = Field(
        5,
        ge=1,
        description="A finding requires that no recorded evaluation row is a recorded training "
        "row, and that enough rows were recorded to show this: if all evaluation rows were "
        "training rows, at least this number of common rows would be expected.",
    )


@dataclass(frozen=True, slots=True)
class _ValueComparison:
    """Comparison of an evaluation tensor (an input or a target) with a tensor of training."""

    num_shared: int
    """Number of compared values that also occur in training."""
    num_compared: int
    """Number of distinct sampled values of the evaluation tensor that were compared."""


def _judge(rule: Rule[OverlappingWindowsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for network in sorted({r.network for r in trace.rows}):
        training_epochs = _epochs_of_network(trace, network, is_learning=True)
        # Skip loaders that are also used for training.
        skipped_loaders = {e.loader for e in training_epochs}
        for epoch in _epochs_of_network(trace, network, is_learning=False):
            if epoch.loader in skipped_loaders:
                continue
            comparison = _find_shared_values(
                rule.settings,
                trace,
                epoch,
                [e for e in training_epochs if e.step < epoch.step],
            )
            if comparison is not None:
                skipped_loaders.add(epoch.loader)  # one finding for each loader
                findings.append(_build_finding(rule, trace, network, epoch, comparison))
    return tuple(findings)


def _epochs_of_network(trace: Trace, network: int, *, is_learning: bool) -> list[EpochRecord]:
    """Return the epochs whose first batch the network received in training, or in evaluation.

    An epoch is identified by its loader and its step. The loader alone is not sufficient: equal
    loaders that are created again for each fold share one index, so one index may be used for
    training in one fold and for evaluation in another.
    """
    loader_steps = {
        (r.loader, r.step)
        for r in trace.rows
        if r.network == network and r.is_learning == is_learning
    }
    return [e for e in trace.epochs if (e.loader, e.step) in loader_steps]


def _find_shared_values(
    settings: OverlappingWindowsSettings,
    trace: Trace,
    epoch: EpochRecord,
    training_epochs: Sequence[EpochRecord],
) -> _ValueComparison | None:
    """Return the comparison of the first target, if nearly all values occur in training.

    The values of the input and of all continuous targets that differ from the input are compared.

    Returns:
        None if there is no such target, if a target or the input has too few values or too many new
        values, or if the epoch may contain training rows.
    """
    inputs = [f for f in epoch.fields if not f.place]  # the tensor at place 0 is the input
    targets = [
        f
        for f in epoch.fields
        if f.place
        and _is_continuous(f, training_epochs)
        and (not inputs or f.values != inputs[0].values)
    ]
    if not targets or not _has_only_new_rows(settings, trace, epoch, training_epochs):
        return None
    # The input values must occur in training, too. Rows with new inputs are new rows, even if their
    # targets occur in training.
    comparisons = [
        _compare_values(settings, field, training_epochs) for field in (*targets, *inputs)
    ]
    is_shared = all(
        c.num_compared >= settings.min_values
        and c.num_shared >= settings.min_shared_share * c.num_compared
        for c in comparisons
    )
    return comparisons[0] if is_shared else None


def _is_continuous(field: FloatFieldRecord, training_epochs: Sequence[EpochRecord]) -> bool:
    """Whether equal values of a tensor must be copies, because values rarely repeat by chance.

    Quantized values repeat, and so do values that are looked up in a table for each row.
    """
    training_fields = [f for e in training_epochs for f in e.fields if f.place == field.place]
    return bool(training_fields) and all(f.is_continuous for f in (field, *training_fields))


def _has_only_new_rows(
    settings: OverlappingWindowsSettings,
    trace: Trace,
    epoch: EpochRecord,
    training_epochs: Sequence[EpochRecord],
) -> bool:
    """Whether an epoch has no training row, and enough rows were recorded to show this.

    If the evaluation contains training rows, another rule reports that. An epoch with as many rows
    as a training epoch counts as the training set, perhaps cut into different windows.
    """
    training_loaders = {e.loader for e in training_epochs}
    dataset_sizes = [x.num_rows for x in trace.loaders if x.index in training_loaders]
    epoch_sizes = {e.num_indices for e in training_epochs if e.is_finished and e.num_indices}
    # The size of a dataset without a length is -1.
    if min(dataset_sizes) < 1 or epoch.num_indices in epoch_sizes:
        return False
    training_contents = [e.contents for e in training_epochs]
    rows, training_rows = _comparable_hashes(epoch.contents, training_contents)
    sampled_share = hash_share_up_to(common_threshold([epoch.contents, *training_contents]))
    # Estimated share of the training rows that was recorded.
    coverage = min(len(training_rows) / sampled_share / sum(dataset_sizes), 1.0)
    return not rows & training_rows and coverage * len(rows) >= settings.min_expected_common_rows


def _compare_values(
    settings: OverlappingWindowsSettings,
    field: FloatFieldRecord,
    training_epochs: Sequence[EpochRecord],
) -> _ValueComparison:
    """Compare an evaluation tensor with the training tensor that contains most of its values.

    Inputs are compared only with inputs. The training targets of a denoising network are inputs
    without noise, so evaluation inputs without noise could equal them.
    """
    pairs = [
        _comparable_hashes(field.values, sketches)
        for sketches in _training_sketches(training_epochs, inputs_only=not field.place)
    ]
    num_shared, num_compared = max(
        ((len(values & training_values), len(values)) for values, training_values in pairs),
        key=lambda pair: pair[0] / pair[1] if pair[1] >= settings.min_values else 0.0,
        default=(0, 0),
    )
    return _ValueComparison(num_shared, num_compared)


def _training_sketches(
    training_epochs: Sequence[EpochRecord], *, inputs_only: bool
) -> Iterator[list[SketchRecord]]:
    """Yield, for each tensor of each training loader, its sketches in all epochs.

    If ``inputs_only``, targets are left out.
    """
    for loader, place in sorted({(e.loader, f.place) for e in training_epochs for f in e.fields}):
        if not (inputs_only and place):
            yield [
                f.values
                for e in training_epochs
                if e.loader == loader
                for f in e.fields
                if f.place == place
            ]


def _comparable_hashes(
    sketch: SketchRecord, other_sketches: Sequence[SketchRecord]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the comparable hashes of a sketch, and the union of those of the other sketches.

    Hashes are comparable up to a limit. All sketches are complete up to this limit; larger hashes
    may be missing from a sketch.
    """
    limit = common_threshold([sketch, *other_sketches])
    other_hashes = frozenset().union(*(values_up_to(limit, s) for s in other_sketches))
    return values_up_to(limit, sketch), other_hashes


def _build_finding(
    rule: Rule[OverlappingWindowsSettings],
    trace: Trace,
    network: int,
    epoch: EpochRecord,
    comparison: _ValueComparison,
) -> TraceFinding:
    return rule.finding(
        severity="error",
        step=epoch.step + 1,
        what=f"{network_name(trace, network)}: {comparison.num_shared} of "
        f"{comparison.num_compared} distinct sampled target values of loader {epoch.loader} also "
        "occur, bit for bit, in training windows. No recorded evaluation window as a whole equals "
        "a recorded training window.",
        cause="Windows of one series overlap: training windows contain the targets of the "
        "evaluation, so scores say nothing about new data.",
        fix="Split the series by time, with a gap of one window, before windows are cut from it.",
        num_shared=comparison.num_shared,
        num_evaluated=comparison.num_compared,
        loader=epoch.loader,
    )


OVERLAPPING_WINDOWS = Rule(
    name="evaluation windows do not overlap training windows",
    fault="train-validation leakage",
    priority=560,
    requires="Batches of loaders with continuous targets, for training and later for evaluation.",
    contradicted_by="A series that repeats itself bit for bit.",
    abstains="Input values are new; an evaluation row equals a training row; the evaluation has "
    "as many rows as a training epoch; the targets equal the inputs; values of the targets "
    "repeat; or too few rows were recorded.",
    settings=OverlappingWindowsSettings(),
    judge=_judge,
)
