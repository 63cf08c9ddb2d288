"""Traces the fitting of one unit, and says what was wrong with it (TRACE-1, TRACE-16)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import TrainingFailed
from sluice.base.files import NO_ROOM_LEFT
from sluice.trace.attach import traced
from sluice.trace.diagnosis import Diagnosis, diagnose
from sluice.trace.reading import read_trace
from sluice.trace.replay.page import replay_page
from sluice.trace.rules.library import judge_all
from sluice.trace.settings import TraceSettings
from sluice.trace.tracer import say_on_stderr

TRACES = "traces"
"""Folder of a unit's traces, one for each attempt to fit it."""

SETTINGS = TraceSettings(recent_bytes=2 * 2**20, history_bytes=8 * 2**20)
"""There may be hundreds of units."""


class UnitTrace:
    """The trace of one attempt, to be read when it has ended."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """None when nothing is traced; it is made with the first event."""
        self.messages: list[str] = []
        """Lines of the tracer for the user, such as that tracing stopped."""

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Return what was wrong, ranked; nothing without a trace."""
        if self.folder is None or not self.folder.exists():
            return ()
        return diagnose(judge_all(read_trace(self.folder))[0])

    def keep_replay(self, diagnoses: tuple[Diagnosis, ...], store: ArtifactStore) -> str:
        """Keep the page that plays the fitting back; return its digest, '' without a trace."""
        if self.folder is None or not self.folder.exists():
            return ""
        return store.put(replay_page(read_trace(self.folder), diagnoses).encode())

    def print_messages(self) -> None:
        """Print what the tracer has to say, once the unit is finished.

        But for a full disk: what is written to it next, by this unit or by another, says that.
        """
        for message in self.messages:
            if NO_ROOM_LEFT not in message:
                say_on_stderr(message)


@contextmanager
def watched(unit: Path, *, on: bool) -> Iterator[UnitTrace]:
    """Trace what happens inside.

    Args:
        unit: Folder of the unit.
        on: Whether to do so at all.

    Raises:
        TrainingFailed: As raised inside; when the trace shows why, with that as its cause.
    """
    attempt = UnitTrace()
    if not on:
        yield attempt
        return
    try:
        with traced(unit / TRACES, SETTINGS, say=attempt.messages.append) as attempt.folder:
            yield attempt
    except TrainingFailed as error:
        errors = [d for d in attempt.diagnoses() if d.finding.severity == "error"]
        if not errors:
            raise
        raise told_by(errors[0], error) from error


def told_by(diagnosis: Diagnosis, error: TrainingFailed) -> TrainingFailed:
    """Return the error with the cause that its trace shows."""
    finding = diagnosis.finding
    return type(error)(
        error.what,
        cause=f"{diagnosis.fault} since step {diagnosis.step}: {finding.what} {finding.cause}",
        fix=finding.fix,
    )
