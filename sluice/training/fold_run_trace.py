"""Traces the training of one fold run and diagnoses faults from the trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import TrainingFailed
from sluice.base.files import DISK_FULL_MESSAGE
from sluice.trace.attach import traced
from sluice.trace.diagnosis import Diagnosis, diagnose
from sluice.trace.report.replay.page import replay_page
from sluice.trace.rules.library import judge_with_failures
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import read_trace
from sluice.trace.tracer import print_to_stderr

_TRACES_FOLDER = "traces"
"""Name of the folder that contains the traces of a fold run, one per attempt."""

_TRACE_SETTINGS = TraceSettings(recent_bytes=2 * 2**20, history_bytes=8 * 2**20)
"""Trace settings with low size limits, because a candidate may have hundreds of fold runs."""


class FoldRunTrace:
    """The trace of one attempt to train a fold run, to be read after the attempt has ended."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Folder of the trace, which is created with the first event; None without tracing."""
        self.messages: list[str] = []
        """Messages of the tracer for the user, such as that tracing stopped."""

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Return the diagnosed faults, the most severe first; () without a trace."""
        if self.folder is None or not self.folder.exists():
            return ()
        return diagnose(judge_with_failures(read_trace(self.folder))[0])

    def store_replay(self, diagnoses: tuple[Diagnosis, ...], store: ArtifactStore) -> str:
        """Store the page that replays the training; return its digest, or '' without a trace."""
        if self.folder is None or not self.folder.exists():
            return ""
        return store.put(replay_page(read_trace(self.folder), diagnoses).encode())

    def print_messages(self) -> None:
        """Print the messages of the tracer after the fold run has finished.

        Messages about a full disk are omitted, because the next write of the fold run raises an
        error.
        """
        for message in self.messages:
            if DISK_FULL_MESSAGE not in message:
                print_to_stderr(message)


@contextmanager
def traced_attempt(run_folder: Path, *, is_enabled: bool) -> Iterator[FoldRunTrace]:
    """Trace the training inside the context.

    Args:
        run_folder: Folder of the fold run.
        is_enabled: Whether to trace; if not, the yielded trace stays empty.

    Raises:
        TrainingFailed: Raised inside the context. If the trace shows an error, cause and fix come
            from the diagnosis of this error.
    """
    attempt = FoldRunTrace()
    if not is_enabled:
        yield attempt
        return
    try:
        with traced(
            run_folder / _TRACES_FOLDER, _TRACE_SETTINGS, print_line=attempt.messages.append
        ) as attempt.folder:
            yield attempt
    except TrainingFailed as error:
        errors = [d for d in attempt.diagnoses() if d.finding.severity == "error"]
        if not errors:
            raise
        raise explain_error(errors[0], error) from error


def explain_error(diagnosis: Diagnosis, error: TrainingFailed) -> TrainingFailed:
    """Return the error with the cause and the fix of the diagnosis."""
    finding = diagnosis.finding
    return type(error)(
        error.what,
        cause=f"{diagnosis.fault} since step {diagnosis.step}: {finding.what} {finding.cause}",
        fix=finding.fix,
    )
