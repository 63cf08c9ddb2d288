"""Whether a look would find a window that was not judged yet: cheap, from labels and counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pandas as pd

from sluice.config.drift_settings import DriftSettings
from sluice.drift import live
from sluice.drift.watch import SUBJECTS, DriftWatch, Subject
from sluice.drift.windows import Waiting, next_window
from sluice.rollout.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The rows of the source that have features and a target, by label."""

    index: pd.Index
    known_until: str
    """Label of the last row that the version was made with, held-out rows included."""

    has_losses: bool
    """Whether losses of the version on held-out rows were kept to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What is new, and why the rest is not."""

    subjects: tuple[Subject, ...]
    waits: tuple[str, ...]


def what_is_new(
    labels: Labels | None,
    samples: Sequence[Sample],
    watch: DriftWatch | None,
    settings: DriftSettings,
    *,
    in_production_since: datetime,
) -> News:
    """Return the subjects that have a window to judge.

    Args:
        labels: Of the source's rows; None when these have no order in time.
        samples: The newest ones of the model.
        watch: What is known of this version; None before the first look.
        settings: Sizes of windows.
        in_production_since: Older samples are another version's.

    Raises:
        ContractError: The labels are of another kind than those the version learned from.
    """
    found: list[Subject] = []
    waits: list[str] = []

    def ask(subject: Subject, index: pd.Index, after: str) -> None:
        known = watch.subject(subject) if watch else None
        last = known.last if known else None
        window = next_window(index, after=last or after, is_first=last is None, settings=settings)
        if isinstance(window, Waiting):
            waits.append(f"{SUBJECTS[subject].capitalize()}: {window.reason}")
        else:
            found.append(subject)

    if labels is not None:
        ask("rows", labels.index, labels.known_until)
        if labels.has_losses:
            ask("losses", labels.index, labels.known_until)
    known = live.since(sorted(samples, key=lambda s: s.at), in_production_since)
    if known:
        since = in_production_since.isoformat()
        requests = watch.subject("requests") if watch else None
        fresh = known
        if requests and requests.last:
            fresh = live.since(known, datetime.fromisoformat(requests.last))
        ask("requests", live.request_frame(fresh, [""] * len(known[-1].features)).index, since)
        until = watch.latencies_until if watch else ""
        ask("latency", live.latencies(known).index, until or since)
    return News(subjects=tuple(found), waits=tuple(waits))
