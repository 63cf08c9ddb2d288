"""Saves the rows that a challenger failed on as a regression suite for later candidates.

Shape legend: N = labelled rows, S = networks of a model.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.evaluation.suites.library import SuiteEntry, SuiteLibrary
from sluice.evaluation.suites.user_suites import failures_suite, find_positions
from sluice.evaluation.unseen_members import row_labels
from sluice.registry.observations import MAX_SAMPLES
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.samples import Outputs, RequestFault, Sample
from sluice.rollout.state import Rollout, Transition
from sluice.rollout_control.labelled_losses import pairs_by_position
from sluice.rollout_control.quality import live_losses
from sluice.workloads.workload import Workload

MAX_FAILURES = 200
"""Maximum number of saved rows per cause, because people inspect a suite row by row."""

_WORST_LOSS_SHARE = 0.1
"""Maximum share of the labelled rows that is saved after the verdict REJECT. The rows on which the
challenger's loss exceeds production's the most are saved."""

_FAULT_TEXTS: Mapping[RequestFault, str] = {
    "errors": "the challenger raised an error",
    "timeouts": "the challenger answered after the deadline",
    "not_finite": "the prediction of the challenger was NaN or infinity",
}

FailureReasons = dict[int, str]
"""Reason why each row failed, by the row's position in the frame."""


class FailedRows(Record):
    """Result of saving the rows that the challenger of a rollout failed on."""

    suite: SuiteEntry | None = Field(description="The saved suite; None if no rows were saved.")
    reason: str = Field(
        description="Which rows were saved, or why no rows were saved, in one sentence."
    )


def save_failures_suite(
    ledger: RolloutLedger,
    rollout_id: str,
    workload: Workload,
    frame: pd.DataFrame,
    library: SuiteLibrary,
    now: datetime,
) -> FailedRows:
    """Save the rows that a rolled-back challenger failed on as a suite.

    Rows are saved for each cause of the rollback: rows of failed requests, labelled rows with the
    largest loss relative to production, and rows on which the predictions differ most. If the
    function is called again and more rows are known, it saves the next version of the suite;
    otherwise it changes nothing.

    Args:
        ledger: Ledger with the rollout and its samples.
        rollout_id: Id of the rollout.
        workload: Workload of the model, which computes the losses.
        frame: Newest feature frame. Only rows of this frame are saved.
        library: Suites of the model's pipeline.
        now: Current time, UTC.

    Raises:
        ContractError: The rollout does not exist, or samples do not fit the frame.
        StorageError: The library cannot be written.
    """
    transitions = ledger.rollout_transitions(rollout_id)
    if not transitions:
        raise ContractError(
            f"The rollout {rollout_id!r} does not exist.",
            fix="Give an id from 'sluice rollout list'.",
        )
    last_transition = transitions[-1]
    rollout = last_transition.rollout
    if last_transition.outcome != "roll_back" or last_transition.window is None:
        return _no_suite(
            f"the rollout was not rolled back because of its traffic: {last_transition.reason}"
        )
    samples = ledger.observations.samples(
        rollout.model, rollout=rollout.id, max_samples=MAX_SAMPLES
    )
    if not any(sample.key for sample in samples):
        return _no_suite("no request has row keys, which clients send in the field 'keys'")
    reasons: FailureReasons = {}
    for more_reasons in _failure_reasons(
        last_transition, ledger, rollout, workload, frame, samples
    ):
        reasons = more_reasons | reasons  # a row keeps the reason of the strongest cause
    if not reasons:
        return _no_suite("no row that the challenger failed on has a key and is in the features")
    suite_name = f"rollout-{rollout.id[:8]}"
    labels = row_labels(frame.index)
    rows = _existing_rows(library, suite_name, frame) | {
        str(labels[position]): reason for position, reason in reasons.items()
    }
    source = (
        f"rollout of {rollout.model} version {rollout.version} of {rollout.started_at:%Y-%m-%d}"
    )
    entry = library.revise(failures_suite(suite_name, rows, frame.index, source=source), at=now)
    return FailedRows(
        suite=entry,
        reason=f"Version {entry.version} of suite '{suite_name}' contains "
        f"{pluralize(entry.num_rows, 'row')} on which the challenger failed.",
    )


def _failure_reasons(
    last_transition: Transition,
    ledger: RolloutLedger,
    rollout: Rollout,
    workload: Workload,
    frame: pd.DataFrame,
    samples: Sequence[Sample],
) -> Iterable[FailureReasons]:
    """Yield the rows for each cause of the rollback, the strongest cause first."""
    if any(reading.verdict == "breach" for reading in last_transition.guards):
        yield _faulty_rows(samples, frame, is_shadow=rollout.current_step.share == 0)
    if last_transition.quality == "REJECT":
        yield _worst_losses(ledger, rollout, workload, frame)
    drift = last_transition.drift
    if drift is not None and drift.distance > drift.limit:
        agreement = ledger.observations.agreement(rollout.id)
        # The limit is a multiple of this unit, which is measured on held-out rows.
        distance_unit = 0.0 if agreement is None else agreement.unit
        yield _largest_disagreements(samples, frame, min_distance=drift.limit * distance_unit)


def _faulty_rows(
    samples: Sequence[Sample], frame: pd.DataFrame, *, is_shadow: bool
) -> FailureReasons:
    """Return the rows that the challenger failed on most often.

    Args:
        samples: Samples of the rollout.
        frame: Newest feature frame.
        is_shadow: Whether the challenger got shadow requests only. The failure of a shadow request
            shows only in the missing output of the challenger.
    """
    faults_by_key: dict[str, list[str]] = {}
    for sample in samples:
        if sample.key is None:
            continue
        if sample.arm == "challenger" and sample.fault is not None:
            faults_by_key.setdefault(sample.key, []).append(_FAULT_TEXTS[sample.fault])
        elif is_shadow and sample.production and not sample.challenger:
            faults_by_key.setdefault(sample.key, []).append(
                "the challenger did not answer a shadow request"
            )
    faults_by_frequency = sorted(faults_by_key.items(), key=lambda item: -len(item[1]))
    positions = find_positions([key for key, _ in faults_by_frequency], frame.index).tolist()
    reasons: FailureReasons = {}
    for position, (_, faults) in zip(positions, faults_by_frequency, strict=True):
        if position >= 0 and len(reasons) < MAX_FAILURES:  # -1: not in the frame
            count_text = f" ({len(faults)} times)" if len(faults) > 1 else ""
            reasons.setdefault(position, "; ".join(sorted(set(faults))) + count_text)
    return reasons


def _worst_losses(
    ledger: RolloutLedger, rollout: Rollout, workload: Workload, frame: pd.DataFrame
) -> FailureReasons:
    """Return the labelled rows on which the challenger's loss exceeds production's the most."""
    tables = live_losses(ledger, rollout, workload, frame)
    if tables is None:
        return {}
    challenger_loss_N, production_loss_N = (table.loss_SN.mean(axis=0) for table in tables)
    position_N = find_positions(tables[0].label_N.tolist(), frame.index)
    excess_N = challenger_loss_N - production_loss_N
    num_worst = math.ceil(_WORST_LOSS_SHARE * excess_N.size)
    reasons = {
        int(position_N[n]): f"the challenger's loss is {challenger_loss_N[n]:.4g}, "
        f"production's loss {production_loss_N[n]:.4g}"
        for n in np.argsort(-excess_N, kind="stable")[:num_worst]
        if excess_N[n] > 0
    }
    return _limit_failures(reasons)


def _largest_disagreements(
    samples: Sequence[Sample], frame: pd.DataFrame, *, min_distance: float
) -> FailureReasons:
    """Return the rows on which the predictions of both arms differ most."""
    distances = {}
    for position, pair in pairs_by_position(samples, frame).items():
        distance = float(
            np.abs(_mean_output(pair.challenger) - _mean_output(pair.production)).mean()
        )
        if distance > min_distance:
            distances[position] = distance
    largest_first = sorted(distances, key=lambda position: -distances[position])
    return _limit_failures(
        {
            position: f"the challenger's prediction differs from production's by "
            f"{distances[position]:.4g}"
            for position in largest_first
        }
    )


def _limit_failures(reasons: FailureReasons) -> FailureReasons:
    """Return the first ``MAX_FAILURES`` rows."""
    return dict(islice(reasons.items(), MAX_FAILURES))


def _mean_output(outputs: Outputs | None) -> NDArray[np.float64]:
    output: NDArray[np.float64] = np.mean(np.array(outputs, np.float64), axis=0)
    return output


def _existing_rows(library: SuiteLibrary, suite_name: str, frame: pd.DataFrame) -> dict[str, str]:
    """Return the rows of the saved suite that are still in the frame."""
    if suite_name not in library.names():
        return {}
    rows = library.load(suite_name).suite.rows
    positions = find_positions([row.label for row in rows], frame.index)
    return {
        row.label: row.reason
        for row, position in zip(rows, positions, strict=True)
        if position >= 0
    }


def _no_suite(reason: str) -> FailedRows:
    return FailedRows(
        suite=None, reason=f"No suite of failed rows was saved: {reason.rstrip('.')}."
    )
