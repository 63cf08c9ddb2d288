"""``sluice.trace``: traces a block of code, and reports the faults that it shows."""

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from sluice.base.errors import StorageError
from sluice.base.home import Home
from sluice.base.pluralize import pluralize
from sluice.reports.notebook import HtmlPage, card, fragment, heading, paragraph
from sluice.reports.page import Tone
from sluice.trace.diagnosis import Diagnosis
from sluice.trace.finding import TraceFinding
from sluice.trace.recording.storage import unique_folder
from sluice.trace.report.trace_report import ProcessReport, report_traces
from sluice.trace.settings import TraceSettings

_TONE_BY_SEVERITY: dict[str, Tone] = {"error": "bad", "confirm": "unsure", "warning": "unsure"}


def trace(out: Path | str | None = None, *, settings: TraceSettings | None = None) -> "TracedBlock":
    """Trace the training in a ``with`` block, without changing the program or its results.

    ::

        with sluice.trace() as traced:
            train(model, loader)
        assert not traced.errors, traced.errors[0].what

    An exception in the block is raised as usual; the findings up to that point are available.
    Inside another trace, for example under ``sluice trace -- python train.py``, the outer trace
    records the block, and the block has no findings of its own.

    Args:
        out: Folder that gets a new subfolder for the block; by default ``SLUICE_HOME/traces``.
        settings: Limits of time, memory and disk, and the response to non-finite losses. Only this
            response, which is off by default, changes what the program does.

    Cost:
        Imports torch. For the cost of a trace, run ``sluice bench trace``.
    """
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    return TracedBlock(home.traces if out is None else Path(out), settings or TraceSettings())


class TracedBlock:
    """A traced block of code; its results are available after the block."""

    def __init__(self, out: Path, settings: TraceSettings) -> None:
        self.folder = out.resolve()
        """Folder of the block's traces, with one subfolder per process. Before the block begins, it
        is the folder that was passed. It is not created if nothing is trained, or if an outer trace
        records the block."""
        self.reports: tuple[ProcessReport, ...] = ()
        """Reports on the traced processes; empty during the block, and if nothing was trained."""
        self._out = self.folder
        self._settings = settings
        self._stack = ExitStack()
        self._has_outer_trace = False
        """Whether an outer trace records the block."""

    def __enter__(self) -> Self:
        # Imported here, because this import takes seconds: it also imports torch.
        from sluice.trace.attach import active_tracer, traced

        self._has_outer_trace = active_tracer() is not None
        self.reports = ()
        # Use a new folder, so that the reports do not include earlier traces in ``out``.
        self.folder = unique_folder(self._out, "block")
        self._stack.enter_context(traced(self.folder, self._settings))
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)
        # No trace was written if nothing was trained, an outer trace exists, or the disk is full.
        with suppress(StorageError):
            self.reports = report_traces(self.folder)

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Root causes with their consequences: by process, and within a process by severity."""
        return tuple(diagnosis for report in self.reports for diagnosis in report.diagnoses)

    @property
    def findings(self) -> tuple[TraceFinding, ...]:
        """All findings, each with cause and fix; root causes before their consequences."""
        return tuple(
            finding
            for diagnosis in self.diagnoses
            for finding in (*diagnosis.findings, *diagnosis.consequences)
        )

    @property
    def errors(self) -> tuple[TraceFinding, ...]:
        """Findings with severity 'error': faults of the training regardless of your intent."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps that were traced, over all processes."""
        return sum(report.steps for report in self.reports)

    def replay(self) -> HtmlPage:
        """Return the page that replays the training of the first process.

        Raises:
            StorageError: Nothing was traced, or an outer trace recorded the block.
            ContractError: The trace was changed after it was written.
        """
        if self._has_outer_trace:
            raise StorageError(
                "The block has no trace of its own, because an outer trace recorded it.",
                fix="Call replay() of the outer trace, or 'sluice trace replay' on its folder.",
            )
        if not self.reports:
            raise StorageError(
                f"No training was traced in {self.folder}.",
                fix="Train inside the block, and call replay() after it.",
            )
        from sluice.trace.report.replay.page import replay_page
        from sluice.trace.trace_reader import read_trace

        report = self.reports[0]
        return HtmlPage(replay_page(read_trace(Path(report.folder)), report.diagnoses))

    def __repr__(self) -> str:
        steps_text = f", {pluralize(self.num_steps, 'step')}" if self.reports else ""
        return f"<TracedBlock: {self._outcome[0]}{steps_text}>"

    def _repr_html_(self) -> str:
        outcome, tone = self._outcome
        steps_text = pluralize(self.num_steps, "optimizer step")
        return fragment(
            heading("Training trace", outcome, tone),
            paragraph(f"{steps_text}, stored in {self.folder}", soft=True) if self.reports else "",
            *(_card(diagnosis) for diagnosis in self.diagnoses),
        )

    @property
    def _outcome(self) -> tuple[str, Tone]:
        if self._has_outer_trace:
            return "recorded by the outer trace", "plain"
        if not self.num_steps and not self.diagnoses:
            return "no training was traced", "unsure"
        if self.errors:
            return pluralize(len(self.errors), "error"), "bad"
        if self.diagnoses:
            return "needs review", "unsure"
        return "no problem found", "good"


def _card(diagnosis: Diagnosis) -> str:
    finding = diagnosis.finding
    return card(
        f"{diagnosis.fault}, from step {diagnosis.step}",
        _TONE_BY_SEVERITY[finding.severity],
        (
            ("seen:", finding.what),
            ("why:", finding.cause),
            ("do:", finding.fix),
            ("consequences:", "; ".join(effect.what for effect in diagnosis.consequences)),
        ),
    )
