"""Rows that a rollout failed on become a regression suite for every later candidate (DATA-5)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.pluralize import counted
from sluice.base.settings import Record
from sluice.evaluation.production import row_labels
from sluice.evaluation.suites.chosen_rows import failures_suite, find_places
from sluice.evaluation.suites.library import SuiteEntry, SuiteLibrary
from sluice.registry.observations import KEPT_SAMPLES
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.samples import Fault, Outputs, Sample
from sluice.rollout.state import Rollout, Transition
from sluice.rollout_control.labelled import labelled_pairs
from sluice.rollout_control.quality import live_losses
from sluice.workloads.workload import Workload

MOST_FAILURES = 200
"""Rows of each kind; a suite is looked at row by row."""

_WORST_SHARE = 0.1
"""Of the labelled rows, those that are taken when the labels spoke against the challenger."""

_FAULTS: Mapping[Fault, str] = {
    "errors": "the challenger raised",
    "timeouts": "the challenger answered after the deadline",
    "not_finite": "the challenger answered NaN or infinity",
}

Reasons = dict[int, str]
"""Why a row failed, by its position in the frame."""


class FailedRows(Record):
    """What became of the rows that a rollout failed on."""

    suite: SuiteEntry | None = Field(description="None when nothing was made.")
    reason: str = Field(description="What was made, or why nothing, in one sentence.")


def keep_failures(
    ledger: RolloutLedger,
    rollout_id: str,
    workload: Workload,
    frame: pd.DataFrame,
    library: SuiteLibrary,
    now: datetime,
) -> FailedRows:
    """Make a suite of the rows that a rolled back challenger failed on (DATA-5).

    Rows are taken of whatever rolled it back: requests it failed, labelled rows where it lost most
    against production, rows where both predictions were the farthest apart. Calling it again adds
    rows that became known since, as the next version of the suite, and else changes nothing.

    Args:
        ledger: Holds the rollout and its samples.
        rollout_id: Of a rollout.
        workload: Of its model; knows the losses.
        frame: Newest feature frame; only rows in it can be in a suite.
        library: Suites of the model's pipeline.
        now: The present moment, UTC.

    Raises:
        ContractError: There is no such rollout, or samples do not fit the frame.
        StorageError: The library cannot be written.
    """
    transitions = ledger.rollout_transitions(rollout_id)
    if not transitions:
        raise ContractError(
            f"There is no rollout {rollout_id!r}.",
            fix="Give an id that 'sluice rollout list' names.",
        )
    last = transitions[-1]
    rollout = last.rollout
    if last.outcome != "roll_back" or last.window is None:
        return _nothing(f"it was not rolled back on what was seen: {last.reason}")
    samples = ledger.observations.samples(rollout.model, rollout=rollout.id, newest=KEPT_SAMPLES)
    if not any(sample.key for sample in samples):
        return _nothing("no request named its rows; clients name them with 'keys'")
    reasons: Reasons = {}
    for found in _sources(last, ledger, rollout, workload, frame, samples):
        reasons = found | reasons
    if not reasons:
        return _nothing("none of the rows it failed on is in the features yet, or none was named")
    name = f"rollout-{rollout.id[:8]}"
    labels = row_labels(frame.index)
    told = _kept(library, name, frame) | {str(labels[at]): why for at, why in reasons.items()}
    source = (
        f"rollout of {rollout.model} version {rollout.version} of {rollout.started_at:%Y-%m-%d}"
    )
    entry = library.revise(failures_suite(name, told, frame.index, source=source), at=now)
    return FailedRows(
        suite=entry,
        reason=f"Suite '{name}', version {entry.version}, holds "
        f"{counted(entry.num_rows, 'row')} it failed on.",
    )


def _sources(
    last: Transition,
    ledger: RolloutLedger,
    rollout: Rollout,
    workload: Workload,
    frame: pd.DataFrame,
    samples: Sequence[Sample],
) -> Iterable[Reasons]:
    """Yield the rows behind each thing that rolled it back, the strongest reason first."""
    if any(reading.verdict == "breach" for reading in last.guards):
        yield _faults(samples, frame, copies=rollout.current_step.share == 0)
    if last.quality == "REJECT":
        yield _lost(ledger, rollout, workload, frame)
    drift = last.drift
    if drift is not None and drift.distance > drift.limit:
        agreement = ledger.observations.agreement(rollout.id)
        unit = 0.0 if agreement is None else agreement.unit
        yield _far_apart(samples, frame, beyond=drift.limit * unit)


def _faults(samples: Sequence[Sample], frame: pd.DataFrame, *, copies: bool) -> Reasons:
    """Return the rows that the challenger failed on most often.

    Where it answered nobody it got ``copies``, of which only a missing answer tells.
    """
    times: dict[str, list[str]] = {}
    for sample in samples:
        if sample.key is None:
            continue
        if sample.arm == "challenger" and sample.fault is not None:
            times.setdefault(sample.key, []).append(_FAULTS[sample.fault])
        elif copies and sample.production and not sample.challenger:
            times.setdefault(sample.key, []).append("the challenger left a copy unanswered")
    most = sorted(times.items(), key=lambda found: -len(found[1]))
    keys = [key for key, _ in most]
    found: Reasons = {}
    for at, (_, faults) in zip(find_places(keys, frame.index).tolist(), most, strict=True):
        if at >= 0 and len(found) < MOST_FAILURES:
            often = f" ({len(faults)} times)" if len(faults) > 1 else ""
            found.setdefault(at, "; ".join(sorted(set(faults))) + often)
    return found


def _lost(
    ledger: RolloutLedger, rollout: Rollout, workload: Workload, frame: pd.DataFrame
) -> Reasons:
    """Return the labelled rows on which the challenger lost the most against production."""
    tables = live_losses(ledger, rollout, workload, frame)
    if tables is None:
        return {}
    ours_N, theirs_N = (table.loss_SN.mean(axis=0) for table in tables)
    at_N = find_places(tables[0].label_N.tolist(), frame.index)
    lost_N = ours_N - theirs_N
    reasons = {
        int(at_N[n]): f"loss {ours_N[n]:.4g}, production's {theirs_N[n]:.4g}"
        for n in np.argsort(-lost_N, kind="stable")[: math.ceil(_WORST_SHARE * lost_N.size)]
        if lost_N[n] > 0
    }
    return _first(reasons)


def _far_apart(samples: Sequence[Sample], frame: pd.DataFrame, *, beyond: float) -> Reasons:
    """Return the rows on which the predictions of both arms differ the most."""
    apart = {}
    for at, pair in labelled_pairs(samples, frame).items():
        distance = float(np.abs(_answer(pair.challenger) - _answer(pair.production)).mean())
        if distance > beyond:
            apart[at] = distance
    farthest = sorted(apart, key=lambda at: -apart[at])
    return _first({at: f"predictions {apart[at]:.4g} apart from production's" for at in farthest})


def _first(reasons: Reasons) -> Reasons:
    return dict(islice(reasons.items(), MOST_FAILURES))


def _answer(outputs: Outputs | None) -> NDArray[np.float64]:
    answer: NDArray[np.float64] = np.mean(np.array(outputs, np.float64), axis=0)
    return answer


def _kept(library: SuiteLibrary, name: str, frame: pd.DataFrame) -> dict[str, str]:
    """Return what the suite holds already, of rows that are still there."""
    if name not in library.names():
        return {}
    rows = library.load(name).suite.rows
    there = find_places([row.label for row in rows], frame.index) >= 0
    return {row.label: row.reason for row, is_there in zip(rows, there, strict=True) if is_there}


def _nothing(why: str) -> FailedRows:
    return FailedRows(suite=None, reason=f"No suite of failed rows was made: {why.rstrip('.')}.")
