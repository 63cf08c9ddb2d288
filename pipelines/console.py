"""Live progress of a run on stderr: a line per stage, and a progress bar."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import dagster as dg
from dagster._core.events import EngineEventData
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sluice.assets.metadata import REUSED
from sluice.tuning.live_table import omitted_text, table_cells

_MIN_PARTS_FOR_TENTHS = 20
"""A line is printed after each tenth of a stage if the stage has at least this many parts."""
_MAX_SILENT_S = 15.0
"""A report of progress prints a line if the last printed line is older than this [s]."""


class RunConsole:
    """Shows the events of one run and the progress of its stages.

    Prints one line per stage. On a terminal, it also draws a progress bar. Elsewhere, it also
    prints progress lines: after each tenth of a stage with many parts, and after some time without
    a line.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._console = console
        self._clock = clock
        self._stage_starts_s: dict[str, float] = {}
        self._reuse_notes: dict[str, str] = {}
        self._last_printed_tenth = -1
        self._last_print_s = clock()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._table_rows: Sequence[Mapping[str, object]] = ()
        self._live = Live(
            console=console, transient=True, refresh_per_second=8, get_renderable=self._render
        )
        self._task_id = self._bar.add_task("starting", total=None, text="")
        self.stage_seconds: dict[str, float] = {}
        """Run time of each stage [s]."""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def __call__(
        self,
        text: str,
        *,
        num_done: int,
        total: int,
        rows: Sequence[Mapping[str, object]] = (),
        is_important: bool = False,
    ) -> None:
        """Show the progress of the running stage; see ``ProgressReporter``.

        On a terminal, the text is shown in the bar until the next text replaces it, and ``rows``
        become a table below the bar. An important text is printed as a line, too.
        """
        self._table_rows = rows
        self._bar.update(
            self._task_id,
            completed=num_done,
            total=total,
            text=escape(f"{num_done}/{total}  {text}"),
        )
        tenth, now = 10 * num_done // max(total, 1), self._clock()
        is_new_tenth = total >= _MIN_PARTS_FOR_TENTHS and tenth != self._last_printed_tenth
        is_due = is_new_tenth or now - self._last_print_s > _MAX_SILENT_S
        if is_important or (is_due and not self._console.is_terminal):
            self._last_printed_tenth, self._last_print_s = tenth, now
            self._console.print(f"      {num_done}/{total}  {text}", highlight=False, markup=False)

    def on_event(self, event: dg.EventLogEntry) -> None:
        """Show one event of the run's log."""
        dagster_event = event.dagster_event
        if dagster_event is None or dagster_event.step_key is None:
            return
        stage = dagster_event.step_key.split("__", 1)[-1].replace("_", " ")
        if dagster_event.is_step_start:
            self._stage_starts_s[stage] = self._last_print_s = self._clock()
            self._last_printed_tenth, self._table_rows = -1, ()
            self._bar.reset(self._task_id, description=stage, total=None, text="")
        elif dagster_event.is_step_materialization:
            self._reuse_notes[stage] = _reuse_note(dagster_event)
        elif dagster_event.is_step_success or dagster_event.is_step_failure:
            seconds = self._clock() - self._stage_starts_s.pop(stage, self._clock())
            self.stage_seconds[stage] = seconds
            mark = "[green]ok[/green]" if dagster_event.is_step_success else "[red]no[/red]"
            note = self._reuse_notes.pop(stage, "")
            line = f"  {mark}  {stage:<42} {seconds:6.1f} s{note}"
            self._console.print(line, highlight=False, soft_wrap=True)
        elif pool := _blocking_pool(dagster_event):
            self._console.print(
                f"      {stage} waits: another run uses the concurrency pool '{pool}'",
                highlight=False,
            )

    def _render(self) -> RenderableType:
        """Return the bar with the table of work in progress below it."""
        if not self._table_rows:
            return self._bar
        cells, omitted_columns = table_cells(self._table_rows, width=self._console.width - 2)
        table = Table(*map(escape, cells[0]), box=None, padding=(0, 0, 0, 2), header_style="dim")
        for column in table.columns:
            column.justify, column.no_wrap = "right", True
        for row in cells[1:]:
            table.add_row(*map(escape, row))
        omission_lines = (
            [Text(f"  {omitted_text(omitted_columns)}", style="dim")] if omitted_columns else []
        )
        return Group(self._bar, table, *omission_lines)


def _blocking_pool(event: dg.DagsterEvent) -> str:
    """Return the concurrency pool for which a step waits; "" if the event reports no wait."""
    data = event.event_specific_data
    pool = data.metadata.get("pool") if isinstance(data, EngineEventData) else None
    return "" if pool is None else str(pool.value)


def _reuse_note(event: dg.DagsterEvent) -> str:
    """Return which parts of a stage's result are from earlier runs; "" if all are new."""
    reused_parts = event.step_materialization_data.materialization.metadata.get(REUSED)
    return "" if reused_parts is None else f"  {REUSED}: {reused_parts.value}"
