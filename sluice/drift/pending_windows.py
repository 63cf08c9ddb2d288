"""Checks cheaply, from index labels and counts, whether a new window can be evaluated for drift."""

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
class SourceIndex:
    """Index of the source rows that have features and a target."""

    index: pd.Index
    known_until: str
    """Index label of the last row, training or held-out, from which the version was created."""

    has_losses: bool
    """Whether the version has stored held-out losses to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWindows:
    """Signals that have a new window, and the reasons why the other signals have none."""

    signals: tuple[Signal, ...]
    wait_reasons: tuple[str, ...]


def find_pending_windows(
    source_index: SourceIndex | None,
    samples: Sequence[Sample],
    state: MonitorState | None,
    settings: DriftSettings,
    *,
    in_production_since: datetime,
) -> PendingWindows:
    """Return the signals that have a window to evaluate.

    Args:
        source_index: Index of the source's rows; None if the rows have no order in time.
        samples: Newest samples of the model.
        state: Monitor state of this version; None before the first run.
        settings: Window sizes.
        in_production_since: Time of the promotion; older samples belong to another version.

    Raises:
        ContractError: The index labels have another type than those of the training rows.
    """
    signals: list[Signal] = []
    wait_reasons: list[str] = []

    def check_signal(signal: Signal, index: pd.Index, after: str) -> None:
        signal_state = state.signal(signal) if state else None
        last_label = signal_state.last if signal_state else None
        window = next_window(
            index, after=last_label or after, is_first=last_label is None, settings=settings
        )
        if isinstance(window, Waiting):
            wait_reasons.append(f"{SIGNALS[signal].capitalize()}: {window.reason}")
        else:
            signals.append(signal)

    if source_index is not None:
        check_signal("rows", source_index.index, source_index.known_until)
        if source_index.has_losses:
            check_signal("losses", source_index.index, source_index.known_until)
    version_samples = serving_samples.production_samples(
        sorted(samples, key=lambda sample: sample.at), in_production_since
    )
    if version_samples:
        since = in_production_since.isoformat()
        newest_sample = version_samples[-1]
        # Requests without feature columns, such as texts, have predictions only.
        signal: Signal = "requests" if newest_sample.features else "predictions"
        signal_state = state.signal(signal) if state else None
        new_samples = version_samples
        if signal_state and signal_state.last:
            last_time = datetime.fromisoformat(signal_state.last)
            new_samples = serving_samples.production_samples(version_samples, last_time)
        # Only the index is used, so the columns need no names.
        if newest_sample.features:
            table = serving_samples.request_frame(new_samples, [""] * len(newest_sample.features))
        else:
            num_outputs = len((newest_sample.production or ((),))[0])
            table = serving_samples.prediction_frame(new_samples, [""] * num_outputs)
        check_signal(signal, table.index, since)
        embedded_samples = [sample for sample in version_samples if sample.embedding is not None]
        if embedded_samples and embedded_samples[-1].embedding is not None:
            # Only the times are used. The network is compared when the window is evaluated.
            network, values = (
                embedded_samples[-1].embedding.network,
                embedded_samples[-1].embedding.values,
            )
            embedding_state = state.signal("embedding") if state else None
            if embedding_state and embedding_state.last:
                last_time = datetime.fromisoformat(embedding_state.last)
                embedded_samples = serving_samples.production_samples(embedded_samples, last_time)
            times, _ = serving_samples.embedding_rows(embedded_samples, network, len(values))
            check_signal("embedding", times, since)
        until = state.latencies_until if state else ""
        check_signal("latency", serving_samples.latencies(version_samples).index, until or since)
    return PendingWindows(signals=tuple(signals), wait_reasons=tuple(wait_reasons))
