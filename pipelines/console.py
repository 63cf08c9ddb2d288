"""Live progress of a run on stderr: a line per stage, a bar for the long one."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import dagster as dg
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sluice.tuning.live_table import left_out_text, table_cells

_LONG = 20
"""Pieces from which on a stage is told in tenths."""
_SILENT_S = 15.0
"""A shorter stage says where it is when nothing was said for so long."""


class RunConsole:
    """Listens to one run's events and to the stages' own progress.

    On a terminal it draws; in a file or a pipe it prints one line per stage and per tenth of a
    long one.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._console = console
        self._clock = clock
        self._started: dict[str, float] = {}
        self._tenth = -1
        self._said = clock()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._rows: Sequence[Mapping[str, object]] = ()
        self._live = Live(
            console=console, transient=True, refresh_per_second=8, get_renderable=self._drawn
        )
        self._task = self._bar.add_task("starting", total=None, text="")
        self.seconds: dict[str, float] = {}
        """Seconds of own work by stage."""

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
        self, text: str, *, done: int, total: int, rows: Sequence[Mapping[str, object]] = ()
    ) -> None:
        """Hear of a finished piece of the running stage, and what to show below the bar."""
        self._rows = rows
        self._bar.update(
            self._task, completed=done, total=total, text=escape(f"{done}/{total}  {text}")
        )
        tenth, now = 10 * done // max(total, 1), self._clock()
        news = (total >= _LONG and tenth != self._tenth) or now - self._said > _SILENT_S
        if not self._console.is_terminal and news:
            self._tenth, self._said = tenth, now
            self._console.print(f"      {done}/{total}  {text}", highlight=False, markup=False)

    def hear(self, event: dg.EventLogEntry) -> None:
        """Take one event of the run's log."""
        happened = event.dagster_event
        if happened is None or happened.step_key is None:
            return
        stage = happened.step_key.split("__", 1)[-1].replace("_", " ")
        if happened.is_step_start:
            self._started[stage] = self._said = self._clock()
            self._tenth, self._rows = -1, ()
            self._bar.reset(self._task, description=stage, total=None, text="")
        elif happened.is_step_success or happened.is_step_failure:
            seconds = self._clock() - self._started.pop(stage, self._clock())
            self.seconds[stage] = seconds
            mark = "[green]ok[/green]" if happened.is_step_success else "[red]no[/red]"
            self._console.print(f"  {mark}  {stage:<24} {seconds:6.1f} s", highlight=False)

    def _drawn(self) -> RenderableType:
        """Return the bar, and below it the table of what is under way."""
        if not self._rows:
            return self._bar
        cells, left_out = table_cells(self._rows, width=self._console.width - 2)
        table = Table(*map(escape, cells[0]), box=None, padding=(0, 0, 0, 2), header_style="dim")
        for column in table.columns:
            column.justify, column.no_wrap = "right", True
        for row in cells[1:]:
            table.add_row(*map(escape, row))
        below = [Text(f"  {left_out_text(left_out)}", style="dim")] if left_out else []
        return Group(self._bar, table, *below)
