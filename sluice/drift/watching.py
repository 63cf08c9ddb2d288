"""One look at a model in production: which windows are new, and what each of them says (ROLL-3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes, digest_frame
from sluice.config.drift_settings import DriftSettings, PersistenceSettings
from sluice.data.folds import RowRange
from sluice.drift import live
from sluice.drift.concept import ConceptReport, judge_losses
from sluice.drift.held_out import KeptReference, held_out_losses, known_until
from sluice.drift.judge import judge_window
from sluice.drift.latency import LatencyReport, judge_latency
from sluice.drift.page import drift_page
from sluice.drift.plots import two_windows_png
from sluice.drift.reference import DriftReference
from sluice.drift.reference_file import load_reference
from sluice.drift.report import BROKEN, DriftReport
from sluice.drift.watch import (
    SUBJECTS,
    Cure,
    DriftWatch,
    Judgement,
    Subject,
    SubjectWatch,
    carried_on,
    episode_of,
)
from sluice.drift.watch_page import quantity_page
from sluice.drift.windows import Waiting, next_window
from sluice.evaluation.outputs import predict
from sluice.evaluation.production import row_labels
from sluice.evaluation.reference import REPRODUCED_RTOL
from sluice.registry.loading import load_members
from sluice.registry.records import Version
from sluice.rollout.samples import Sample
from sluice.serving.deployed import deployed_members
from sluice.workloads.workload import Workload

_MOST_LATENCIES = 2000
"""Of the first answers that later ones are compared with."""

_SEED = 0
_UNORDERED = (
    "Its rows have no order in time (horizon_rows is 0), so which of them are new is not known."
)

SavePage = Callable[[Callable[[], str], Subject], str | None]
"""Takes what makes a page and what it is about; returns its address, None when it kept none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What there is to judge of a version, and by which rules."""

    version: Version
    in_production_since: datetime
    workload: Workload
    """The version's own, which made the frame."""

    frame: pd.DataFrame
    """Features of the source's present rows."""

    kept: KeptReference | str
    """What was kept with the version, or why nothing was."""

    samples: Sequence[Sample]
    is_served: bool
    """Whether any server answers for the model now."""

    settings: DriftSettings
    alarm: PersistenceSettings
    store: ArtifactStore
    save: SavePage
    now: datetime
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look found, with the reports of the windows it judged."""

    watch: DriftWatch
    reports: dict[Subject, DriftReport] = field(default_factory=dict)


def look_for_drift(seen: Seen, before: DriftWatch | None) -> Look:
    """Judge every window that is new and return all that is known; decides nothing twice.

    Args:
        seen: The version, its reference, the rows, and what servers sampled.
        before: What was known after the last look; one at another version counts for nothing.

    Raises:
        ContractError: The rows do not have the labels or columns that the version learned from.
        IntegrityError: A reference, losses or weights are missing or damaged.

    Cost:
        5,000 rows of nine features, 8 networks: 2 s.
    """
    if before is not None and before.candidate != seen.version.candidate:
        before = None
    looker = _Looker(seen, before)
    latencies, until = looker.first_latencies()
    subjects = (
        looker.rows(),
        *looker.live_tables(),
        looker.latency(latencies, until),
        looker.losses(),
    )
    name = seen.version.candidate
    trained, mended = (before.training, before.repair) if before else (None, None)
    training = episode_of(trained, subjects, "train", candidate=name, now=seen.now)
    repair = episode_of(mended, subjects, "repair", candidate=name, now=seen.now)
    watch = DriftWatch(
        model=seen.version.model,
        version=seen.version.number,
        candidate=name,
        at=seen.now,
        subjects=subjects,
        latencies=latencies,
        latencies_until=until,
        training=training,
        repair=repair,
    )
    return Look(watch=watch, reports=looker.reports)


class _Looker:
    """The subjects of one look; each method returns one of them."""

    def __init__(self, seen: Seen, before: DriftWatch | None) -> None:
        self._seen = seen
        self._before = before
        ordered = sorted(seen.samples, key=lambda s: s.at)
        self._samples = live.since(ordered, seen.in_production_since)
        self.reports: dict[Subject, DriftReport] = {}

    def rows(self) -> SubjectWatch:
        """Judge new rows of the source."""
        seen = self._seen
        if seen.workload.horizon_rows == 0:
            return self._carry("rows", _UNORDERED, is_watched=False)
        reference = self._reference("features")
        if isinstance(reference, str):
            return self._carry("rows", reference)
        assert not isinstance(seen.kept, str), "the reference is of it"
        members = deployed_members(seen.version.lineage.members)
        after = known_until(seen.kept, members, seen.store)
        frame = seen.frame[list(seen.workload.feature_columns)]
        return self._carry("rows", self._table("rows", frame, reference, after=after))

    def live_tables(self) -> tuple[SubjectWatch, SubjectWatch]:
        """Judge what clients asked about, and what they were told."""
        columns = self._seen.workload.feature_columns
        asked = live.request_frame(self._after("requests"), columns)
        features = self._reference("features")
        predictions = self._reference("predictions")
        num_outputs = 0
        if not isinstance(predictions, str):
            num_outputs = len(predictions.columns) + len(predictions.left_out)
        names = live.prediction_columns(num_outputs)
        told = live.prediction_frame(self._after("predictions"), names)
        return (
            self._live("requests", asked, features),
            self._live("predictions", told, predictions),
        )

    def first_latencies(self) -> tuple[tuple[float, ...], str]:
        """Return the latencies [s] that later ones are compared with, and until when they came."""
        before = self._before
        if before is not None and before.latencies:
            return before.latencies, before.latencies_until
        found = live.latencies(self._samples)
        wanted = min(self._seen.settings.window_rows, _MOST_LATENCIES)
        if len(found) < wanted:
            return (), ""
        first = found.iloc[:wanted]
        return tuple(first.tolist()), str(first.index[-1].isoformat())

    def latency(self, reference: tuple[float, ...], until: str) -> SubjectWatch:
        """Judge how long answers take, against this version's own first ones."""
        seen = self._seen
        if not self._is_heard:
            return self._carry("latency", _silent(seen.version.model), is_watched=False)
        if not reference:
            said = f"{len(live.latencies(self._samples))} answers so far; its first "
            said += f"{min(seen.settings.window_rows, _MOST_LATENCIES)} become the reference."
            return self._carry("latency", Waiting(reason=said))
        seconds = live.latencies(self._samples)
        rows = self._window("latency", seconds.index, after=until)
        if isinstance(rows, Waiting):
            return self._carry("latency", rows)
        window_N = _values(seconds.iloc[rows.start : rows.stop])
        report = judge_latency(
            np.array(reference),
            window_N,
            seen.settings,
            window=_digest(window_N, seconds.index[rows.start]),
            seed=_SEED,
        )
        numbers = {
            "95 % of the answers took at most, then": f"{1000 * report.reference_p95_s:.3g} ms",
            "now": f"{1000 * report.p95_s:.3g} ms",
            "times": f"{report.ratio:.3g}",
            "at least, at the rate of false alarms allowed": f"{report.lower_ratio:.3g}",
            "answers compared": f"{report.reference_rows:,} and {report.num_rows:,}",
        }
        page = self._quantity(
            "latency", report, numbers, 1000 * np.array(reference), 1000 * window_N, "ms"
        )
        return self._carry(
            "latency", self._judgement(report, seconds.index, rows, (), "repair", page)
        )

    def losses(self) -> SubjectWatch:
        """Judge what the model lost on rows that came after those it was accepted on."""
        seen = self._seen
        if seen.workload.horizon_rows == 0:
            return self._carry("losses", _UNORDERED, is_watched=False)
        if isinstance(seen.kept, str) or seen.kept.losses is None:
            why = seen.kept if isinstance(seen.kept, str) else " ".join(seen.kept.lacking)
            return self._carry("losses", why)
        recorded = held_out_losses(seen.kept.losses, seen.store)
        rows = self._window("losses", seen.frame.index, after=str(recorded.index[-1]))
        if isinstance(rows, Waiting):
            return self._carry("losses", rows)
        now = self._own_losses(recorded.index[0], rows)
        again = now.reindex(recorded.index).dropna()
        wrong = ~np.isclose(again, recorded[again.index], rtol=REPRODUCED_RTOL, atol=1e-9)
        if wrong.any():
            return self._carry(
                "losses",
                f"The model no longer makes its recorded losses ({int(wrong.sum())} of "
                f"{wrong.size} held-out rows differ): the rows were revised, or other code "
                "computes them.",
            )
        labels = row_labels(seen.frame.index)[rows.start : rows.stop]
        known = now.reindex(labels).dropna()
        reference_N, window_N = _values(recorded), _values(known)
        report = judge_losses(
            reference_N,
            window_N,
            seen.settings,
            horizon_rows=seen.workload.horizon_rows,
            window=_digest(window_N, labels[0]),
        )
        unit = seen.workload.loss_unit
        numbers = {
            f"mean loss when it was accepted [{unit}]": f"{report.reference_loss:.4g}",
            "now": f"{report.loss:.4g}",
            "rise": f"{report.rise:.3g}",
            "at least": f"{report.lower_bound:.3g}",
            "Cohen's d": f"{report.effect:.2g}",
            "rows compared": f"{report.reference_rows:,} and {report.num_rows:,}",
        }
        page = self._quantity("losses", report, numbers, reference_N, window_N, unit)
        return self._carry(
            "losses", self._judgement(report, seen.frame.index, rows, (), "train", page)
        )

    @property
    def _is_heard(self) -> bool:
        return self._seen.is_served or bool(self._samples)

    def _own_losses(self, first_label: str, rows: RowRange) -> "pd.Series[float]":
        """Return the deployed model's losses by label, from its held-out rows to the newest."""
        seen = self._seen
        labels = row_labels(seen.frame.index)
        held_out = np.flatnonzero(labels == first_label)
        start = min(int(held_out[0]), rows.start) if held_out.size else rows.start
        members = deployed_members(seen.version.lineage.members)
        workload, networks = load_members(seen.version, members, seen.store)
        examples = workload.examples(seen.frame, RowRange(start=start, stop=rows.stop))
        output = torch.stack([predict(network, examples.x) for network in networks]).mean(dim=0)
        losses = workload.losses(output, examples.y).double().numpy()
        return pd.Series(losses, index=labels[examples.rows])

    def _live(
        self, subject: Subject, frame: pd.DataFrame, reference: DriftReference | str
    ) -> SubjectWatch:
        if not self._is_heard:
            return self._carry(subject, _silent(self._seen.version.model), is_watched=False)
        if isinstance(reference, str):
            return self._carry(subject, reference)
        after = self._seen.in_production_since.isoformat()
        return self._carry(subject, self._table(subject, frame, reference, after=after))

    def _table(
        self, subject: Subject, frame: pd.DataFrame, reference: DriftReference, *, after: str
    ) -> Judgement | Waiting:
        rows = self._window(subject, frame.index, after=after)
        if isinstance(rows, Waiting):
            return rows
        window, seen = frame.iloc[rows.start : rows.stop], self._seen
        report = judge_window(reference, window, window=digest_frame(window), threads=seen.threads)
        self.reports[subject] = report
        page = seen.save(lambda: drift_page(report, reference, title=self._title(subject)), subject)
        faults = any(column.finding in BROKEN for column in report.moved)
        moved = tuple(column.column for column in report.moved)
        return self._judgement(
            report, frame.index, rows, moved, "repair" if faults else "train", page
        )

    def _window(self, subject: Subject, index: pd.Index, *, after: str) -> RowRange | Waiting:
        last = self._last(subject)
        return next_window(
            index, after=last or after, is_first=last is None, settings=self._seen.settings
        )

    def _judgement(
        self,
        report: DriftReport | LatencyReport | ConceptReport,
        index: pd.Index,
        rows: RowRange,
        columns: tuple[str, ...],
        cure: Cure,
        page: str | None,
    ) -> Judgement:
        labels = row_labels(index[[rows.start, rows.stop - 1]])
        return Judgement(
            window=report.window,
            first=str(labels[0]),
            last=str(labels[1]),
            num_rows=len(rows),
            at=self._seen.now,
            verdict=report.verdict,
            reason=report.reason,
            remedy=report.remedy,
            columns=columns,
            cure=cure,
            page=page,
        )

    def _quantity(
        self,
        subject: Subject,
        report: LatencyReport | ConceptReport,
        numbers: dict[str, str],
        reference_N: NDArray[np.float64],
        window_N: NDArray[np.float64],
        unit: str,
    ) -> str | None:
        def page() -> str:
            finite = np.isfinite(reference_N).all() and np.isfinite(window_N).all()
            png = (
                two_windows_png(
                    reference_N,
                    window_N,
                    headline=SUBJECTS[subject],
                    unit=unit,
                    drifted=report.verdict == "DRIFT",
                )
                if finite
                else b""
            )
            told = (report.verdict, report.reason, report.remedy)
            return quantity_page(self._title(subject), *told, numbers, png)

        return self._seen.save(page, subject)

    def _reference(self, what: str) -> DriftReference | str:
        kept = self._seen.kept
        if isinstance(kept, str):
            return kept
        digest: str | None = getattr(kept, what)
        return load_reference(digest, self._seen.store) if digest else " ".join(kept.lacking)

    def _after(self, subject: Subject) -> list[Sample]:
        last = self._last(subject)
        return live.since(self._samples, datetime.fromisoformat(last)) if last else self._samples

    def _last(self, subject: Subject) -> str | None:
        known = self._before.subject(subject) if self._before else None
        return known.last if known else None

    def _carry(
        self, subject: Subject, found: Judgement | Waiting | str, *, is_watched: bool = True
    ) -> SubjectWatch:
        known = self._before.subject(subject) if self._before else None
        return carried_on(known, subject, found, self._seen.alarm, is_watched=is_watched)

    def _title(self, subject: Subject) -> str:
        version = self._seen.version
        return f"{version.model} version {version.number}, {SUBJECTS[subject]}"


def _silent(model: str) -> str:
    return f"No server tells of {model}."


def _values(series: "pd.Series[float]") -> NDArray[np.float64]:
    return np.asarray(series, np.float64)


def _digest(values_N: NDArray[np.float64], label: object) -> str:
    return digest_bytes(np.ascontiguousarray(values_N).tobytes() + str(label).encode())
