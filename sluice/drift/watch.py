"""What was judged of a model in production, window by window, and what that asks for (ROLL-3)."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, Field

from sluice.base.digests import digest_json
from sluice.base.settings import Record
from sluice.config.drift_settings import PersistenceSettings
from sluice.drift.persistence import Persistence, persist
from sluice.drift.report import Verdict
from sluice.drift.windows import Waiting

Subject = Literal["rows", "requests", "predictions", "latency", "losses"]
SUBJECTS: dict[Subject, str] = {
    "rows": "new rows of the source",
    "requests": "rows that clients ask about",
    "predictions": "answers of production",
    "latency": "seconds an answer takes",
    "losses": "losses once labels arrived",
}
WatchVerdict = Verdict | Literal["WAITING"]
"""WAITING: there is nothing to judge yet, and nothing is wrong."""
Cure = Literal["train", "repair"]
_KEPT = 50
"""Judgements of a subject that are kept."""


class Judgement(Record):
    """What became of one window."""

    window: str = Field(description="Its digest, or what else tells it from others.")
    first: str = Field(description="Label of its first row.")
    last: str = Field(description="Label of its last row; the next window begins after it.")
    num_rows: int
    at: AwareDatetime
    verdict: Verdict
    reason: str
    remedy: str
    columns: tuple[str, ...] = Field(description="What moved, the surest first.")
    cure: Cure = Field(description="Training again cannot mend what is broken or slow.")
    page: str | None = Field(None, description="Address of its page.")


class SubjectWatch(Record):
    """One subject: its windows so far, and what they say together."""

    subject: Subject
    judgements: tuple[Judgement, ...] = Field((), description="Oldest first.")
    is_new: bool = Field(description="Whether the last look judged a window.")
    waits: str = Field("", description="Why it did not.")
    is_waiting: bool = Field(
        False, description="Whether it did not because too little came since, and nothing is wrong."
    )
    is_watched: bool = Field(True, description="False when nothing tells of it, as without servers")
    persistence: Persistence

    @property
    def verdict(self) -> WatchVerdict:
        """Verdict of the newest window; without one WAITING, or INCONCLUSIVE if none can come."""
        if self.judgements:
            return self.judgements[-1].verdict
        return "WAITING" if self.is_waiting else "INCONCLUSIVE"

    @property
    def last(self) -> str | None:
        """Label of the newest row that was judged."""
        return self.judgements[-1].last if self.judgements else None

    @property
    def said(self) -> str:
        """What is known, in a sentence or two."""
        if not self.judgements:
            return self.waits
        newest = self.judgements[-1]
        return newest.reason if self.is_new else f"{newest.reason} Since then: {self.waits}"

    @property
    def cure(self) -> Cure:
        """What the newest window with drift asks for."""
        drifted = [j.cure for j in self.judgements if j.verdict == "DRIFT"]
        return drifted[-1] if drifted else "train"


class Episode(Record):
    """Drift that stayed, from the look that found it until none is left: one alarm."""

    id: str
    cure: Cure
    began_at: AwareDatetime
    subjects: tuple[Subject, ...]
    columns: tuple[str, ...]
    reason: str


class DriftWatch(Record):
    """Everything known of one version in production."""

    model: str
    version: int
    candidate: str
    at: AwareDatetime
    subjects: tuple[SubjectWatch, ...]
    latencies: tuple[float, ...] = Field((), description="Its first ones, to compare with [s].")
    latencies_until: str = Field("", description="When the last of these came.")
    training: Episode | None = Field(None, description="Drift that training again may mend.")
    repair: Episode | None = Field(None, description="What somebody has to look at.")

    def subject(self, name: Subject) -> SubjectWatch | None:
        """Return what is known of one subject."""
        return next((found for found in self.subjects if found.subject == name), None)

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """The alarms that last."""
        return tuple(found for found in (self.training, self.repair) if found is not None)

    @property
    def verdict(self) -> WatchVerdict:
        """DRIFT when any newest window drifted; STABLE only when all that is watched is."""
        verdicts = {found.verdict for found in self.subjects if found.is_watched}
        order: tuple[WatchVerdict, ...] = ("DRIFT", "INCONCLUSIVE", "WAITING", "STABLE")
        return next((verdict for verdict in order if verdict in verdicts), "WAITING")

    @property
    def reason(self) -> str:
        """Why, in one paragraph."""
        verdict = self.verdict
        told = [s for s in self.subjects if s.is_watched and s.verdict == verdict]
        stable = [s for s in self.subjects if s.is_watched and s.verdict == "STABLE"]
        calm = f"No drift in {', '.join(SUBJECTS[s.subject] for s in stable)}." if stable else ""
        if verdict == "STABLE":
            return calm
        # With nothing watched, what is not watched says why.
        lines = [f"{SUBJECTS[s.subject].capitalize()}: {s.said}" for s in told or self.subjects]
        return " ".join([*([calm] if calm and verdict == "WAITING" else []), *lines])

    @property
    def is_new(self) -> bool:
        """Whether the last look judged anything."""
        return any(found.is_new for found in self.subjects)


def carried_on(
    before: SubjectWatch | None,
    subject: Subject,
    found: Judgement | Waiting | str,
    settings: PersistenceSettings,
    *,
    is_watched: bool = True,
) -> SubjectWatch:
    """Return a subject after one more look.

    Args:
        before: As it was; None at the first look at a version.
        subject: Which one.
        found: A judgement; ``Waiting`` when too little came for one; else a text that says what is
            in the way of one. The same window again is none.
        settings: How many windows must drift.
        is_watched: Whether anything tells of it.
    """
    judgements = before.judgements if before else ()
    if not isinstance(found, Judgement):
        waits = found.reason if isinstance(found, Waiting) else found
    elif judgements and judgements[-1].window == found.window:
        waits = "The window is the one that was judged last."
    else:
        waits = ""
        judgements = (*judgements, found)[-_KEPT:]
    return SubjectWatch(
        subject=subject,
        judgements=judgements,
        is_new=not waits,
        waits=waits,
        is_waiting=isinstance(found, Waiting),
        is_watched=is_watched or bool(judgements),
        persistence=persist([j.verdict for j in judgements], settings),
    )


def episode_of(
    before: Episode | None,
    subjects: Iterable[SubjectWatch],
    cure: Cure,
    *,
    candidate: str,
    now: datetime,
) -> Episode | None:
    """Return the alarm that lasts, or has begun; None when there is none.

    It begins when a subject's windows raise the alarm, and ends when none of the subjects that
    raised it still does and none is undecided. What joins it on the way begins no second one.
    """
    known = tuple(subjects)
    own = [s for s in known if s.cure == cure]
    loud = [s for s in own if s.persistence.alarm == "ALARM"]
    if before is not None:
        lasting = [s for s in known if s.subject in before.subjects]
        if loud or any(s.persistence.alarm == "INCONCLUSIVE" for s in lasting):
            return before
        return None
    if not loud:
        return None
    newest = {s.subject: _drifted(s) for s in loud}
    columns = dict.fromkeys(name for j in newest.values() for name in j.columns)
    return Episode(
        id=digest_json([candidate, cure, {s: j.window for s, j in newest.items()}])[:12],
        cure=cure,
        began_at=now,
        subjects=tuple(newest),
        columns=tuple(columns),
        reason=" ".join(
            f"{SUBJECTS[s.subject].capitalize()}: {s.persistence.reason} {newest[s.subject].reason}"
            for s in loud
        ),
    )


def _drifted(watch: SubjectWatch) -> Judgement:
    found: Sequence[Judgement] = [j for j in watch.judgements if j.verdict == "DRIFT"]
    return found[-1]
