"""Checks cheaply, from labels and counts, whether there is a new window to evaluate for drift."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pandas as pd

from sluice.config.drift_settings import DriftSettings
from sluice.drift import serving_samples
from sluice.drift.monitor_state import SIGNALS, MonitorState, Signal
from sluice.drift.windows import Waiting, next_window
from sluice.rollout.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLabels:
    """Labels of the source rows that have features and a target."""

    index: pd.Index
    known_until: str
    """Label of the last row used to create the version, held-out rows included."""

    has_losses: bool
    """Whether the version has stored held-out losses to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWindows:
    """Signals with a new window, and why the others have none."""

    signals: tuple[Signal, ...]
    wait_reasons: tuple[str, ...]


def find_pending_windows(
    labels: SourceLabels | None,
    samples: Sequence[Sample],
    state: MonitorState | None,
    settings: DriftSettings,
    *,
    in_production_since: datetime,
) -> PendingWindows:
    """Return the signals that have a window to evaluate.

    Args:
        labels: Labels of the source's rows; None if the rows have no order in time.
        samples: Newest samples of the model.
        state: Monitor state of this version; None before the first run.
        settings: Window sizes.
        in_production_since: Time of the promotion; older samples belong to another version.

    Raises:
        ContractError: The type of the labels differs from that of the training rows.
    """
    found: list[Signal] = []
    waits: list[str] = []

    def check(signal: Signal, index: pd.Index, after: str) -> None:
        known = state.signal(signal) if state else None
        last = known.last if known else None
        window = next_window(index, after=last or after, is_first=last is None, settings=settings)
        if isinstance(window, Waiting):
            waits.append(f"{SIGNALS[signal].capitalize()}: {window.reason}")
        else:
            found.append(signal)

    if labels is not None:
        check("rows", labels.index, labels.known_until)
        if labels.has_losses:
            check("losses", labels.index, labels.known_until)
    known = serving_samples.production_samples(
        sorted(samples, key=lambda s: s.at), in_production_since
    )
    if known:
        since = in_production_since.isoformat()
        requests = state.signal("requests") if state else None
        fresh = known
        if requests and requests.last:
            fresh = serving_samples.production_samples(known, datetime.fromisoformat(requests.last))
        check(
            "requests",
            serving_samples.request_frame(fresh, [""] * len(known[-1].features)).index,
            since,
        )
        until = state.latencies_until if state else ""
        check("latency", serving_samples.latencies(known).index, until or since)
    return PendingWindows(signals=tuple(found), wait_reasons=tuple(waits))
