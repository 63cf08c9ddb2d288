"""Detects evaluation rows that are also training rows."""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.inputs import RowsRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import network_name
from sluice.trace.rules._helpers.optimizer_steps import stepping_optimizers


class TrainValLeakageSettings(Settings):
    """Thresholds of the rule ``TRAIN_VAL_LEAKAGE``."""

    min_shared_rows: int = Field(
        3,
        ge=1,
        description="Minimum number of evaluation rows that are also training rows, for a finding.",
    )
    min_shared_share: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Minimum share of the evaluation rows that are also training rows, for a "
        "finding.",
    )
    min_full_share: float = Field(
        0.85,
        gt=0,
        le=1,
        description="Minimum share of the evaluation rows that are training rows, for all of them "
        "to count as training rows. The share of the training rows that are evaluation rows has "
        "the same minimum.",
    )
    min_chance_ratio: float = Field(
        3.0,
        gt=1,
        description="Minimum ratio of the number of shared rows to the number expected by chance, "
        "for a finding.",
    )
    majority_share: float = Field(
        0.5, gt=0, le=1, description="Minimum share of rows that counts as the majority."
    )
    max_part_share: float = Field(
        0.6,
        gt=0,
        le=1,
        description="Share of the training rows below which an evaluation on training rows alone "
        "counts as a failed split. From this share on, it counts as an intentional training "
        "score.",
    )
    max_held_out_ratio: int = Field(
        2,
        gt=1,
        description="Maximum ratio of the rows of one evaluation pass to the training rows, for "
        "the rows of the pass to count as a held-out part.",
    )
    min_loop_steps: int = Field(
        8,
        ge=1,
        description="Minimum number of steps with forward passes on different rows than at a "
        "neighboring step, for passes without a gradient to count as part of training.",
    )
    min_action_steps: int = Field(
        8,
        ge=1,
        description="Minimum number of steps with a forward pass on a single row, for these passes "
        "to count as the selection of actions in reinforcement learning.",
    )
    max_actions_per_step: int = Field(
        8,
        ge=1,
        description="Maximum mean number of forward passes on a single row per step, for these "
        "passes to count as the selection of actions in reinforcement learning.",
    )


@dataclass(frozen=True, slots=True)
class _Overlap:
    """Rows of one evaluation loader that are also training rows."""

    loader: int
    """Index of the evaluation loader; -1 for rows that are not from a loader."""
    shared_rows: frozenset[int]
    """Hashes of the evaluation rows that are also training rows."""
    num_evaluated: int
    """Number of distinct evaluation rows."""
    num_in_largest_pass: int
    """Number of rows of the largest forward pass."""
    share: float
    """Estimated share of the evaluation rows that are training rows, recorded or not."""
    first_step: int
    """Number of optimizer steps before the first training pass on a shared row."""
    expected_by_chance: float
    """Number of shared rows that is expected if rows are equal only by chance."""


def _judge(rule: Rule[TrainValLeakageSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for network in sorted({r.network for r in trace.rows}):
        training = [r for r in trace.rows if r.network == network and r.is_learning]
        evaluated = [r for r in trace.rows if r.network == network and not r.is_learning]
        num_optimizers = max(len(stepping_optimizers(trace)), 1)
        records = [
            *training,
            *_without_training_loop_passes(
                rule.settings,
                _without_single_rows(rule.settings, evaluated),
                num_optimizers=num_optimizers,
            ),
        ]
        loaders = {r.loader for r in training}
        if not training:
            continue
        overlaps = [
            _find_overlap(
                trace,
                training,
                _without_training_set_passes(
                    rule.settings,
                    [r for r in records if not r.is_learning and r.loader == loader],
                    training,
                ),
            )
            for loader in sorted({r.loader for r in records if not r.is_learning})
            if loader not in loaders or loader == -1
        ]
        for overlap in overlaps:
            # Another evaluation without any training row is the validation set.
            has_validation = any(o is not overlap and not o.shared_rows for o in overlaps)
            finding = _build_finding(
                rule, trace, network, training, overlap, has_validation=has_validation
            )
            if finding is not None:
                findings.append(finding)
    return tuple(findings)


def _without_single_rows(
    settings: TrainValLeakageSettings, evaluation: list[RowsRecord]
) -> list[RowsRecord]:
    """Drop passes on single rows if many steps have a few of them.

    Such passes select actions in reinforcement learning. A row-by-row evaluation has all its passes
    at few steps.
    """
    single = [record for record in evaluation if record.num_rows == 1]
    steps = {record.step for record in single}
    if len(steps) < settings.min_action_steps or len(single) > settings.max_actions_per_step * len(
        steps
    ):
        return evaluation
    return [record for record in evaluation if record.num_rows > 1]


def _without_training_loop_passes(
    settings: TrainValLeakageSettings, evaluation: list[RowsRecord], *, num_optimizers: int
) -> list[RowsRecord]:
    """Drop forward passes that belong to training: passes on different rows at consecutive steps.

    Examples are the next states in reinforcement learning, and the tokens that a decoder generates.
    If several optimizers alternate, steps up to ``num_optimizers`` apart count as consecutive.
    """
    rows: dict[int, set[int]] = {}
    for record in evaluation:
        rows.setdefault(record.step, set()).update(record.rows)
    loop_steps = {
        step
        for step in rows
        for neighbor in range(step - num_optimizers, step + num_optimizers + 1)
        if neighbor in rows and rows[neighbor] != rows[step]
    }
    if len(loop_steps) < settings.min_loop_steps:
        return evaluation
    return [record for record in evaluation if record.step not in loop_steps]


def _without_training_set_passes(
    settings: TrainValLeakageSettings, evaluation: list[RowsRecord], training: list[RowsRecord]
) -> list[RowsRecord]:
    """Drop forward passes on the training set, if there are passes on other rows.

    Each pass on the training set contains mainly training rows, and all these passes together cover
    most of the training rows. Leaked rows are only a few of the training rows.
    """
    training_rows = {row for r in training for row in r.rows}
    remaining: list[RowsRecord] = []
    covered: set[int] = set()
    for record in evaluation:
        shared = training_rows.intersection(record.rows)
        if len(shared) < settings.majority_share * len(set(record.rows)):
            remaining.append(record)
        else:
            covered |= shared
    return (
        remaining
        if remaining and len(covered) >= settings.majority_share * len(training_rows)
        else evaluation
    )


def _find_overlap(
    trace: Trace, training: list[RowsRecord], evaluation: list[RowsRecord]
) -> _Overlap:
    first_training_steps: dict[int, int] = {}
    for record in training:
        for row in record.rows:
            first_training_steps.setdefault(row, record.step)
    rows = {row for r in evaluation for row in r.rows}
    # A row that was evaluated before it was used for training may have been selected by that
    # evaluation, as in pseudo-labeling. A network that has made no step selects nothing.
    selected: set[int] = set()
    for record in evaluation:
        selected |= {
            row for row in record.rows if 0 < record.step <= first_training_steps.get(row, -1)
        }
    shared = {
        row
        for r in evaluation
        for row in r.rows
        if row in first_training_steps
        and first_training_steps[row] < r.step
        and row not in selected
    }
    coverage = _coverage(trace, training, len(first_training_steps))
    num_pairs, num_duplicates = _count_duplicates([*training, *evaluation])
    # Rule of three: without duplicates among n pairs, their rate is below 3 / n (95 % confidence).
    upper_margin = 3.0 if any(r.is_integer for r in training) else 0.0
    return _Overlap(
        loader=evaluation[0].loader,
        shared_rows=frozenset(shared),
        num_evaluated=len(rows),
        num_in_largest_pass=max((r.num_rows for r in evaluation), default=0),
        share=len(shared) / max(len(rows), 1) / coverage,
        first_step=min((first_training_steps[row] for row in shared), default=0),
        expected_by_chance=0.0
        if all(r.is_continuous for r in training)
        else len(rows)
        * len(first_training_steps)
        * (num_duplicates + upper_margin)
        / max(num_pairs, 1),
    )


def _coverage(trace: Trace, training: list[RowsRecord], num_recorded: int) -> float:
    """Return the share of the training rows that was recorded."""
    loaders = {r.loader for r in training}
    sizes = [x.num_rows for x in trace.loaders if x.index in loaders and x.num_rows > 0]
    if len(loaders) == len(sizes) and sizes:
        return min(num_recorded / sum(sizes), 1.0)
    return 1.0


def _count_duplicates(records: Iterable[RowsRecord]) -> tuple[int, int]:
    """Return the number of pairs of rows within batches, and of pairs of equal rows."""
    num_pairs = num_duplicates = 0
    for record in records:
        num_rows = len(record.rows)
        num_pairs += num_rows * (num_rows - 1) // 2
        counts: dict[int, int] = {}
        for row in record.rows:
            counts[row] = counts.get(row, 0) + 1
        num_duplicates += sum(n * (n - 1) // 2 for n in counts.values())
    return num_pairs, num_duplicates


def _build_finding(
    rule: Rule[TrainValLeakageSettings],
    trace: Trace,
    network: int,
    training: list[RowsRecord],
    overlap: _Overlap,
    *,
    has_validation: bool,
) -> TraceFinding | None:
    num_shared = len(overlap.shared_rows)
    if (
        num_shared < rule.settings.min_shared_rows
        or overlap.share < rule.settings.min_shared_share
        or num_shared <= rule.settings.min_chance_ratio * overlap.expected_by_chance
    ):
        return None
    rows = {row for r in training for row in r.rows}
    if num_shared > rule.settings.min_full_share * len(rows):
        return None  # an evaluation on all rows, including the training set
    num_rows_of_pass = overlap.num_in_largest_pass
    num_shared_of_pass = num_shared / overlap.num_evaluated * num_rows_of_pass
    is_larger = num_rows_of_pass > rule.settings.max_held_out_ratio * len(rows)
    if is_larger and num_shared_of_pass > rule.settings.majority_share * len(rows):
        return None  # an evaluation on all rows, of which only the first rows were recorded
    is_fully_shared = overlap.share >= rule.settings.min_full_share
    if is_fully_shared and has_validation:
        return None  # the training score, next to a validation set
    # The held-out set is a part of the training rows by mistake.
    is_part = is_fully_shared and num_shared < rule.settings.max_part_share * len(rows)
    loader = f" of loader {overlap.loader}" if overlap.loader >= 0 else ""
    return rule.finding(
        severity="confirm" if is_fully_shared and not is_part else "error",
        step=overlap.first_step + 1,
        what=f"{network_name(trace, network)}: {num_shared} of {overlap.num_evaluated} evaluation "
        f"rows{loader} are among the {len(rows)} recorded training rows. The first of these shared "
        f"rows was used for training at step {overlap.first_step + 1}.",
        cause="Scores on training rows do not measure the performance on new rows."
        if not is_fully_shared
        else "Nearly all evaluation rows are training rows, so this is the training score.",
        fix="Split before rows are copied or resampled, and remove duplicates across the splits.",
        num_shared=num_shared,
        num_evaluated=overlap.num_evaluated,
        num_training=len(rows),
        expected_by_chance=overlap.expected_by_chance,
    )


TRAIN_VAL_LEAKAGE = Rule(
    name="evaluation rows are not training rows",
    fault="train-validation leakage",
    priority=550,
    requires="Training rows, and evaluation rows of a later step.",
    contradicted_by="Rows with few distinct values, which are equal by chance.",
    abstains="Values repeat, so that about as many rows would be shared by chance; "
    "all rows are shared and another evaluation has new rows; the evaluation contains all training "
    "rows; or it has different rows at consecutive steps, or single rows at many steps.",
    settings=TrainValLeakageSettings(),
    judge=_judge,
)
