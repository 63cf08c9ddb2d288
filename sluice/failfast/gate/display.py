"""Terminal output of the gate: a line when each check ends, then a table and the problems."""

import math
import os
import sys
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from sluice.base.pluralize import pluralize
from sluice.failfast.gate.messages import CheckStarted
from sluice.failfast.gate.plan import GatePlan
from sluice.failfast.gate.timing import WHOLE_GATE_CHECK
from sluice.failfast.result import CheckResult, GateReport
from sluice.findings.check_outcome import HardExample, Outcome

_NON_TERMINAL_WIDTH = 140
"""Characters per line if stderr is a file or a pipe."""

_OUTCOME_LABELS: dict[Outcome, tuple[str, str]] = {
    "pass": ("ok", "green"),
    "warn": ("warn", "yellow"),
    "fail": ("FAIL", "bold red"),
    "insufficient": ("?", "bold red"),
    "skipped": ("skip", "dim"),
}
"""Short text and style of each outcome."""

_GATE_OUTCOMES = {
    "pass": ("passed", "green"),
    "fail": ("failed", "bold red"),
    "insufficient": ("is inconclusive", "bold red"),
}
"""Last words of the sentence about the gate, and their style, by its outcome."""


def stderr_console() -> Console:
    """Return a console on stderr for the progress, as wide as the terminal.

    Without a terminal, the width is the environment variable ``COLUMNS`` or 140 characters.
    """
    has_width = sys.stderr.isatty() or "COLUMNS" in os.environ
    return Console(stderr=True, width=None if has_width else _NON_TERMINAL_WIDTH)


class LiveLines:
    """Prints a line when each check ends and, on a terminal, the name of the running check.

    Args:
        console: Destination of the progress output; stderr in a command.
        report_follows: On a terminal, print only the checks that do not pass, because the report
            that is printed afterwards lists all checks.
    """

    def __init__(self, console: Console, *, report_follows: bool = False) -> None:
        self._console = console
        self._omits_passed = report_follows and console.is_terminal
        self._status: Status | None = None
        self._num_done = 0
        self._num_checks = 0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, message: GatePlan | CheckStarted | CheckResult) -> None:
        """Show one message of the gate."""
        match message:
            case GatePlan(checks=checks):
                self._num_checks = len(checks) + 1
            case CheckStarted(name=name) if self._status is not None:
                self._status.update(f"{self._num_done + 1}/{self._num_checks} {name}")
            case CheckResult():
                self._num_done += 1
                if message.outcome != "skipped" and not (self._omits_passed and message.passed):
                    self._console.print(_result_line(message), soft_wrap=True, highlight=False)


def report_page(report: GateReport) -> RenderableType:
    """Return the report for a terminal: a table of the checks that ran, then the problems."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("max. seconds", justify="right", no_wrap=True)
    table.add_column("result", overflow="fold")
    for result in report.results:
        if result.outcome == "skipped":
            continue
        label, style = _OUTCOME_LABELS[result.outcome]
        table.add_row(
            Text(label, style=style),
            result.name,
            f"{result.seconds:.2f}",
            f"{result.max_s:g}",
            result.summary if result.outcome == "pass" else Text("see below", style="dim"),
        )
    problems = [problem_text(r) for r in report.results if r.outcome not in ("pass", "skipped")]
    examples = [examples_table(r.examples) for r in report.results if r.examples]
    return Group(table, *_skipped_lines(report), *problems, *examples, _outcome_line(report))


def _skipped_lines(report: GateReport) -> list[Text]:
    """Return one line for all checks that were skipped for the same reason."""
    names_by_reason: dict[str, list[str]] = {}
    for result in report.results:
        if result.outcome == "skipped":
            names_by_reason.setdefault(result.summary, []).append(result.name)
    return [
        Text(
            f"{pluralize(len(check_names), 'check')} not run: {', '.join(check_names)}. {reason}\n",
            style="dim",
        )
        for reason, check_names in names_by_reason.items()
    ]


def problem_text(result: CheckResult) -> RenderableType:
    """Return the observation, the likely cause and the fix, each with its label."""
    label, style = _OUTCOME_LABELS[result.outcome]
    labelled_texts = Table.grid(padding=(0, 1))
    labelled_texts.add_column(no_wrap=True)
    labelled_texts.add_column(overflow="fold")
    texts = (
        ("result:", result.summary),
        ("cause:", result.cause),
        ("fix:", result.fix),
        ("see:", result.explain_command),
    )
    for text_label, text in texts:
        if text:
            labelled_texts.add_row(f"  {text_label}", Text(text))
    heading = Text(f"{label} {result.name}", style=style)
    return Group(heading, labelled_texts, "")


def examples_table(examples: tuple[HardExample, ...]) -> Table:
    """Return a table of the examples with the highest loss and their unusual features."""
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title="Hardest examples of the mini training",
        title_justify="left",
    )
    is_described = any(example.description for example in examples)
    table.add_column("row", no_wrap=True)
    if is_described:
        table.add_column("example", overflow="fold")
    table.add_column("loss", justify="right")
    table.add_column("loss / median loss", justify="right")
    table.add_column("unusual features")
    for example in examples:
        unusual = ", ".join(
            f"{s.feature} {s.value:.4g} ({s.deviations:+.1f} std)" for s in example.unusual_features
        )
        table.add_row(
            escape(example.row),
            *([escape(example.description)] if is_described else []),
            f"{example.loss:.4g}",
            f"{example.times_median:.1f}" if math.isfinite(example.times_median) else "-",
            escape(unusual) or "none",
        )
    return table


def _result_line(result: CheckResult) -> Text:
    label, style = _OUTCOME_LABELS[result.outcome]
    line = Text("  ")
    line.append(f"{label:<5}", style=style)
    line.append(f"{result.name:<34} {result.seconds:6.2f} s")
    if result.name == WHOLE_GATE_CHECK:
        line.append(" in total")
    return line


def _outcome_line(report: GateReport) -> Text:
    outcome, style = _GATE_OUTCOMES[report.outcome]
    text = Text("The ").append(f"{report.level} gate {outcome}", style=style)
    return text.append(f": {report.counts_text}, in {report.seconds:.1f} s.")
