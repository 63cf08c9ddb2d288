"""Evaluates the signals of a version in production: finds new windows, tests them for drift."""

from datetime import datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.digests import digest_bytes, digest_frame
from sluice.base.pluralize import pluralize
from sluice.data.folds import RowRange
from sluice.drift import serving_samples
from sluice.drift.concept_drift import ConceptDriftReport, evaluate_losses
from sluice.drift.embedding_drift import EmbeddingReport, evaluate_embeddings
from sluice.drift.embedding_page import EmbeddingWindow, embedding_page
from sluice.drift.embedding_reference import compares_embeddings
from sluice.drift.latency import LatencyReport, evaluate_latency
from sluice.drift.monitor_inputs import MonitorInputs
from sluice.drift.monitor_page import quantity_page
from sluice.drift.monitor_state import (
    SIGNALS,
    AlarmAction,
    MonitorState,
    Signal,
    SignalState,
    WindowResult,
    update_signal,
)
from sluice.drift.page import drift_page
from sluice.drift.plots import two_windows_png
from sluice.drift.reference import DriftReference
from sluice.drift.reference_file import load_reference
from sluice.drift.reference_store import last_known_label, read_held_out_losses
from sluice.drift.report import DATA_FAULTS, DriftReport
from sluice.drift.sampled_embeddings import sampled_embeddings
from sluice.drift.window_evaluation import evaluate_window
from sluice.drift.windows import Waiting, next_window
from sluice.evaluation.outputs import ensemble_losses
from sluice.evaluation.reference import REPRODUCED_RTOL
from sluice.evaluation.unseen_members import row_labels
from sluice.registry.loading import load_members
from sluice.rollout.samples import Sample
from sluice.serving.deployed import deployed_members

_MAX_LATENCIES = 2000
"""Maximum number of first requests to a version with which later latencies are compared."""

_SEED = 0
"""Seed of the resampling of latencies and of the permutations of embeddings."""

_UNORDERED_REASON = (
    "The rows have no order in time (horizon_rows is 0), so new rows cannot be identified."
)
_NO_COLUMNS_REASON = "The workload declares no feature column to compare."
_NO_FEATURES_REASON = (
    "The requests have no values of feature columns, because watched_values() of the workload's "
    "codec returns none."
)


class SignalEvaluator:
    """Evaluates the signals of one monitor run.

    Each ``update_`` method evaluates the newest data and returns the new state of its signals.
    """

    def __init__(self, inputs: MonitorInputs, previous: MonitorState | None) -> None:
        self._inputs = inputs
        self._previous = previous
        samples = sorted(inputs.samples, key=lambda sample: sample.at)
        self._samples = serving_samples.production_samples(samples, inputs.in_production_since)
        self.reports: dict[Signal, DriftReport] = {}
        self.embedding_window: EmbeddingWindow | None = None

    def update_rows(self) -> SignalState:
        """Evaluate the new rows of the source."""
        inputs = self._inputs
        if inputs.workload.horizon_rows == 0:
            return self._update("rows", _UNORDERED_REASON, is_monitored=False)
        if not inputs.workload.feature_columns:
            return self._update("rows", _NO_COLUMNS_REASON, is_monitored=False)
        reference = self._load_reference("features")
        if isinstance(reference, str):
            return self._update("rows", reference)
        assert not isinstance(inputs.references, str), "a reference was loaded"
        members = deployed_members(inputs.version.lineage.members)
        after = last_known_label(inputs.references, members, inputs.store)
        frame = inputs.frame[list(inputs.workload.feature_columns)]
        return self._update("rows", self._evaluate_table("rows", frame, reference, after=after))

    def update_serving_tables(self) -> tuple[SignalState, SignalState]:
        """Evaluate the requests of clients, and the predictions for these requests."""
        columns = self._inputs.workload.feature_columns
        requests = serving_samples.request_frame(self._new_samples("requests"), columns)
        features = self._load_reference("features")
        predictions = self._load_reference("predictions")
        num_outputs = 0
        if not isinstance(predictions, str):
            num_outputs = len(predictions.columns) + len(predictions.excluded_columns)
        names = serving_samples.prediction_columns(num_outputs)
        prediction_rows = serving_samples.prediction_frame(self._new_samples("predictions"), names)
        has_features = not self._samples or any(sample.features for sample in self._samples)
        return (
            self._evaluate_serving("requests", requests, features)
            if has_features
            else self._update("requests", _NO_FEATURES_REASON, is_monitored=False),
            self._evaluate_serving("predictions", prediction_rows, predictions),
        )

    def update_embedding(self) -> SignalState | None:
        """Evaluate the embeddings of requests; None if ``compares_embeddings`` is False."""
        inputs, settings = self._inputs, self._inputs.settings.embedding
        if settings is None or not compares_embeddings(inputs.workload, inputs.settings):
            return None
        if not self._has_requests:
            return self._update(
                "embedding", _no_server_reason(inputs.version.model), is_monitored=False
            )
        embeddings = sampled_embeddings(inputs, self._new_samples("embedding"))
        if isinstance(embeddings, str):
            return self._update("embedding", embeddings)
        after = inputs.in_production_since.isoformat()
        rows = self._next_window("embedding", embeddings.times, after=after)
        if isinstance(rows, Waiting):
            return self._update("embedding", rows)
        window_NE = embeddings.rows_NE[rows.start : rows.stop]
        report = evaluate_embeddings(
            embeddings.reference,
            window_NE,
            inputs.settings,
            settings,
            window=_digest(window_NE, embeddings.times[rows.start]),
            seed=_SEED,
        )
        embedding_window = EmbeddingWindow(
            report=report, reference_NE=embeddings.reference.rows_NE, window_NE=window_NE
        )
        self.embedding_window = embedding_window
        title = self._title("embedding")
        page = inputs.save_page(lambda: embedding_page(title, embedding_window), "embedding")
        return self._update(
            "embedding", self._window_result(report, embeddings.times, rows, (), "train", page)
        )

    def reference_latencies(self) -> tuple[tuple[float, ...], str]:
        """Return the latencies of the reference requests [s], and the time of the last of them."""
        previous = self._previous
        if previous is not None and previous.latencies:
            return previous.latencies, previous.latencies_until
        latencies = serving_samples.latencies(self._samples)
        num_needed = min(self._inputs.settings.window_rows, _MAX_LATENCIES)
        if len(latencies) < num_needed:
            return (), ""
        first_latencies = latencies.iloc[:num_needed]
        return tuple(first_latencies.tolist()), str(first_latencies.index[-1].isoformat())

    def update_latency(self, reference: tuple[float, ...], reference_until: str) -> SignalState:
        """Evaluate the latency, compared with the first requests to this version.

        Args:
            reference: Latencies of the first requests to this version [s].
            reference_until: Time of the last request in ``reference``.
        """
        inputs = self._inputs
        if not self._has_requests:
            return self._update(
                "latency", _no_server_reason(inputs.version.model), is_monitored=False
            )
        if not reference:
            num_so_far = len(serving_samples.latencies(self._samples))
            num_needed = min(inputs.settings.window_rows, _MAX_LATENCIES)
            reason = (
                f"{pluralize(num_so_far, 'request')} so far; the first {num_needed} become the "
                "reference."
            )
            return self._update("latency", Waiting(reason=reason))
        latencies = serving_samples.latencies(self._samples)
        rows = self._next_window("latency", latencies.index, after=reference_until)
        if isinstance(rows, Waiting):
            return self._update("latency", rows)
        window_N = _to_float64(latencies.iloc[rows.start : rows.stop])
        report = evaluate_latency(
            np.array(reference),
            window_N,
            inputs.settings,
            window=_digest(window_N, latencies.index[rows.start]),
            seed=_SEED,
        )
        display_values = {
            "95th percentile of the reference": f"{1000 * report.reference_p95_s:.3g} ms",
            "95th percentile of the window": f"{1000 * report.p95_s:.3g} ms",
            "ratio": f"{report.ratio:.3g}",
            "lower bound of the ratio": f"{report.lower_ratio:.3g}",
            "requests of reference and window": f"{report.reference_rows:,} and "
            f"{report.num_rows:,}",
        }
        page = self._save_quantity_page(
            "latency", report, display_values, 1000 * np.array(reference), 1000 * window_N, "ms"
        )
        return self._update(
            "latency", self._window_result(report, latencies.index, rows, (), "repair", page)
        )

    def update_losses(self) -> SignalState:
        """Evaluate the losses on new labelled rows, compared with the held-out losses."""
        inputs = self._inputs
        if inputs.workload.horizon_rows == 0:
            return self._update("losses", _UNORDERED_REASON, is_monitored=False)
        if isinstance(inputs.references, str) or inputs.references.losses is None:
            reason = (
                inputs.references
                if isinstance(inputs.references, str)
                else " ".join(inputs.references.lacking)
            )
            return self._update("losses", reason)
        recorded_losses = read_held_out_losses(inputs.references.losses, inputs.store)
        rows = self._next_window("losses", inputs.frame.index, after=str(recorded_losses.index[-1]))
        if isinstance(rows, Waiting):
            return self._update("losses", rows)
        losses = self._compute_losses(recorded_losses.index[0], rows)
        recomputed_losses = losses.reindex(recorded_losses.index).dropna()
        is_different = ~np.isclose(
            recomputed_losses,
            recorded_losses[recomputed_losses.index],
            rtol=REPRODUCED_RTOL,
            atol=1e-9,
        )
        if is_different.any():
            return self._update(
                "losses",
                f"The model does not reproduce its recorded losses ({int(is_different.sum())} of "
                f"{is_different.size} held-out rows differ): the rows or the code have changed.",
            )
        labels = row_labels(inputs.frame.index)[rows.start : rows.stop]
        window_losses = losses.reindex(labels).dropna()
        reference_N, window_N = _to_float64(recorded_losses), _to_float64(window_losses)
        report = evaluate_losses(
            reference_N,
            window_N,
            inputs.settings,
            horizon_rows=inputs.workload.horizon_rows,
            window=_digest(window_N, labels[0]),
        )
        unit = inputs.workload.loss_unit
        display_values = {
            f"mean held-out loss [{unit}]": f"{report.reference_loss:.4g}",
            "mean loss of the window": f"{report.loss:.4g}",
            "increase": f"{report.rise:.3g}",
            "lower bound of the increase": f"{report.lower_bound:.3g}",
            "Cohen's d": f"{report.effect:.2g}",
            "rows of reference and window": f"{report.reference_rows:,} and {report.num_rows:,}",
        }
        page = self._save_quantity_page(
            "losses", report, display_values, reference_N, window_N, unit
        )
        return self._update(
            "losses", self._window_result(report, inputs.frame.index, rows, (), "train", page)
        )

    @property
    def _has_requests(self) -> bool:
        return self._inputs.is_served or bool(self._samples)

    def _compute_losses(self, first_label: str, rows: RowRange) -> "pd.Series[float]":
        """Return the losses of the deployed model by label, from its first held-out row on."""
        inputs = self._inputs
        labels = row_labels(inputs.frame.index)
        first_positions = np.flatnonzero(labels == first_label)
        start = min(int(first_positions[0]), rows.start) if first_positions.size else rows.start
        members = deployed_members(inputs.version.lineage.members)
        workload, networks = load_members(inputs.version, members, inputs.store)
        examples = workload.examples(inputs.frame, RowRange(start=start, stop=rows.stop))
        losses = ensemble_losses(workload, networks, examples).double().numpy()
        return pd.Series(losses, index=labels[examples.rows])

    def _evaluate_serving(
        self, signal: Signal, frame: pd.DataFrame, reference: DriftReference | str
    ) -> SignalState:
        if not self._has_requests:
            return self._update(
                signal, _no_server_reason(self._inputs.version.model), is_monitored=False
            )
        if isinstance(reference, str):
            return self._update(signal, reference)
        after = self._inputs.in_production_since.isoformat()
        return self._update(signal, self._evaluate_table(signal, frame, reference, after=after))

    def _evaluate_table(
        self, signal: Signal, frame: pd.DataFrame, reference: DriftReference, *, after: str
    ) -> WindowResult | Waiting:
        rows = self._next_window(signal, frame.index, after=after)
        if isinstance(rows, Waiting):
            return rows
        window, inputs = frame.iloc[rows.start : rows.stop], self._inputs
        report = evaluate_window(
            reference, window, window=digest_frame(window), threads=inputs.threads
        )
        self.reports[signal] = report
        page = inputs.save_page(
            lambda: drift_page(report, reference, title=self._title(signal)), signal
        )
        has_faults = any(column.finding in DATA_FAULTS for column in report.drifted_columns)
        columns = tuple(column.column for column in report.drifted_columns)
        action: AlarmAction = "repair" if has_faults else "train"
        return self._window_result(report, frame.index, rows, columns, action, page)

    def _next_window(self, signal: Signal, index: pd.Index, *, after: str) -> RowRange | Waiting:
        last_label = self._last_label(signal)
        return next_window(
            index,
            after=last_label or after,
            is_first=last_label is None,
            settings=self._inputs.settings,
        )

    def _window_result(
        self,
        report: DriftReport | LatencyReport | ConceptDriftReport | EmbeddingReport,
        index: pd.Index,
        rows: RowRange,
        columns: tuple[str, ...],
        action: AlarmAction,
        page: str | None,
    ) -> WindowResult:
        labels = row_labels(index[[rows.start, rows.stop - 1]])
        return WindowResult(
            window=report.window,
            first=str(labels[0]),
            last=str(labels[1]),
            num_rows=len(rows),
            at=self._inputs.now,
            verdict=report.verdict,
            reason=report.reason,
            remedy=report.remedy,
            columns=columns,
            action=action,
            page=page,
        )

    def _save_quantity_page(
        self,
        signal: Signal,
        report: LatencyReport | ConceptDriftReport,
        display_values: dict[str, str],
        reference_N: NDArray[np.float64],
        window_N: NDArray[np.float64],
        unit: str,
    ) -> str | None:
        def render_page() -> str:
            is_finite = np.isfinite(reference_N).all() and np.isfinite(window_N).all()
            png = (
                two_windows_png(
                    reference_N,
                    window_N,
                    headline=SIGNALS[signal],
                    unit=unit,
                    has_drifted=report.verdict == "DRIFT",
                )
                if is_finite
                else b""
            )
            text = (report.verdict, report.reason, report.remedy)
            return quantity_page(self._title(signal), *text, display_values, png)

        return self._inputs.save_page(render_page, signal)

    def _load_reference(self, field: str) -> DriftReference | str:
        """Return a drift reference of the version, or why the version has none."""
        references = self._inputs.references
        if isinstance(references, str):
            return references
        digest: str | None = getattr(references, field)
        if digest is None:
            return " ".join(references.lacking)
        return load_reference(digest, self._inputs.store)

    def _new_samples(self, signal: Signal) -> list[Sample]:
        """Return the samples after the last evaluated window of a signal."""
        last_label = self._last_label(signal)
        return (
            serving_samples.production_samples(self._samples, datetime.fromisoformat(last_label))
            if last_label
            else self._samples
        )

    def _last_label(self, signal: Signal) -> str | None:
        """Return the label of the last evaluated row of a signal; None before the first window."""
        previous = self._previous.signal(signal) if self._previous else None
        return previous.last if previous else None

    def _update(
        self, signal: Signal, result: WindowResult | Waiting | str, *, is_monitored: bool = True
    ) -> SignalState:
        previous = self._previous.signal(signal) if self._previous else None
        return update_signal(
            previous, signal, result, self._inputs.alarm_settings, is_monitored=is_monitored
        )

    def _title(self, signal: Signal) -> str:
        version = self._inputs.version
        return f"{version.model} version {version.number}, {SIGNALS[signal]}"


def _no_server_reason(model: str) -> str:
    return f"No server reports requests for {model}."


def _to_float64(series: "pd.Series[float]") -> NDArray[np.float64]:
    return np.asarray(series, np.float64)


def _digest(values_N: NDArray[np.float64], label: object) -> str:
    return digest_bytes(np.ascontiguousarray(values_N).tobytes() + str(label).encode())
