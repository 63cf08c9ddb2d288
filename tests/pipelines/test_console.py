"""Progress output of a run, in a file and in a terminal."""

import io
import uuid

import dagster as dg
import pytest
from rich.console import Console

from sluice.assets.metadata import REUSED
from sluice.pipelines.console import RunConsole


@pytest.fixture
def file_console():
    """A console that writes to a file, its clock, and a function that returns the words so far."""
    out, now = io.StringIO(), [0.0]
    with RunConsole(Console(file=out, width=100), clock=lambda: now[0]) as console:
        yield console, now, lambda: out.getvalue().split()


def test_progress_of_many_items_is_printed_in_tenths(file_console) -> None:
    console, _, words = file_console
    for done in range(41):
        console("x", num_done=done, total=40)

    assert words()[::2] == [f"{done}/40" for done in range(0, 41, 4)]


def test_progress_of_few_items_is_repeated_every_20_s(file_console) -> None:
    console, now, words = file_console
    for second in range(0, 50, 5):
        now[0] = float(second)
        console("x", num_done=0, total=8)

    assert words() == ["0/8", "x"] * 2  # at 20 s and at 40 s


@pytest.mark.parametrize("is_terminal", [False, True])
def test_important_text_is_always_printed(is_terminal: bool) -> None:
    console = Console(record=True, width=80, force_terminal=is_terminal, file=io.StringIO())
    with RunConsole(console, clock=lambda: 0.0) as live:
        live("seed 0 fold 1 epoch 3/9", num_done=0, total=8)
        live("seed 1 fold 1 resumes at epoch 108/400", num_done=0, total=8, is_important=True)

    lines = console.export_text().splitlines()
    assert "      0/8  seed 1 fold 1 resumes at epoch 108/400" in lines


@pytest.mark.parametrize(
    ("metadata", "end"),
    [({REUSED: "10 of 10 trainings"}, f"  {REUSED}: 10 of 10 trainings"), ({}, "")],
)
def test_stage_prints_what_it_reused(metadata: dict[str, str], end: str) -> None:
    @dg.asset
    def trained() -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata=metadata)

    out, run_id = io.StringIO(), str(uuid.uuid4())
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_event_listener(run_id, RunConsole(Console(file=out, width=100)).on_event)
        dg.Definitions(
            assets=[trained], jobs=[dg.define_asset_job("job", [trained])]
        ).resolve_job_def("job").execute_in_process(instance=instance, run_id=run_id)

    (line,) = (line for line in out.getvalue().splitlines() if "ok  trained" in line)
    assert line.endswith(f" s{end}")


def render_lines(rows, *, width=80) -> list[str]:
    console = Console(record=True, width=width, force_terminal=True, file=io.StringIO())
    with RunConsole(console) as live:
        live("trial 3 at epoch 9", num_done=4, total=20, rows=rows)
        console.print(live._render())
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_terminal_shows_a_progress_bar_and_a_row_per_trial() -> None:
    rows = [{"trial": at, "state": "[red]", "loss": 0.123456} for at in range(2)]

    lines = render_lines(rows)

    bar = max(at for at, line in enumerate(lines) if "4/20  trial 3 at epoch 9" in line)
    assert [line.split() for line in lines[bar + 1 :][:3]] == [
        ["trial", "state", "loss"],
        ["0", "[red]", "0.1235"],
        ["1", "[red]", "0.1235"],
    ]


def test_columns_that_do_not_fit_in_the_terminal_are_named() -> None:
    rows = [{f"parameter_{at}": 0.5 for at in range(8)}]

    lines = render_lines(rows)

    assert any(line.endswith("parameter_5") for line in lines)
    assert lines[-1].strip() == "not shown: parameter_6, parameter_7"
    assert max(map(len, lines[-3:])) <= 80
