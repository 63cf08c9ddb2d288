"""The replay of a run: a page that shows the first abnormal step, in a browser (TRACE-15)."""

import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from sluice.trace.diagnosis import diagnose
from sluice.trace.records.step_statistics import StepScalars
from sluice.trace.records.trace import TraceNote
from sluice.trace.report.replay.abnormal import first_abnormal
from sluice.trace.report.replay.export import write_replays, write_tensorboard
from sluice.trace.report.replay.page import rename_replay, replay_page
from sluice.trace.report.replay.series import MAX_POINTS, curves, decimate
from sluice.trace.rules.library import judge

CHROMIUM = Path("/usr/bin/chromium")
needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium")
STEPS = 40


def make_network(bias=0.0):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        model[0].bias.fill_(bias)
    return model


def make_program(*, bad_step=None, bias=0.0, bad_columns=(5,)):
    def program():
        model = make_network(bias)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(64, 8), torch.randint(3, (64,))
        for step in range(1, STEPS + 1):
            batch = x.clone()
            if step == bad_step:
                batch[3, list(bad_columns)] = math.nan
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return program


def page_data(page):
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', page)
    return json.loads(found[1])


def test_the_first_abnormal_tensor_and_its_step_are_found(trace_of):
    found = first_abnormal(trace_of(make_program(bad_step=17)))

    assert (found.step, found.tensor) == (17, "input column 5")
    assert first_abnormal(trace_of(make_program())) is None


def test_all_abnormal_columns_are_named(trace_of):
    found = first_abnormal(trace_of(make_program(bad_step=17, bad_columns=(2, 5))))

    assert found.tensor == "input columns 2, 5"


def test_a_long_list_of_abnormal_columns_is_truncated_with_dots(trace_of):
    def program():
        x = torch.randn(8, 12)
        x[0] = math.nan
        nn.functional.mse_loss(nn.Linear(12, 1)(x), torch.zeros(8, 1)).backward()

    found = first_abnormal(trace_of(program))

    assert found.tensor == "input columns 0, 1, 2, 3, 4, 5, 6, 7, ..."


def test_the_input_curves_show_the_extremes_of_all_batches_of_a_step(trace_of):
    def program():
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = torch.utils.data.DataLoader(torch.tensor([[-1.0], [2.0], [-3.0], [4.0]]), 2)
        for batch in loader:  # two batches in one step
            model(batch).mean().backward()
        optimizer.step()

    input_curves = curves(trace_of(program))["input"]

    assert input_curves["smallest"] == [(1, -3.0)]
    assert input_curves["largest"] == [(1, 4.0)]


def test_a_dead_relu_layer_is_abnormal_from_the_start(trace_of):
    found = first_abnormal(trace_of(make_program(bias=-50.0)))

    assert (found.step, found.tensor) == (1, "output of Sequential.1")
    assert found.what == "all 1,024 values are 0"


def test_the_page_contains_every_curve_and_loads_no_other_files(trace_of):
    trace = trace_of(make_program(bad_step=17))
    page = replay_page(trace, diagnose(judge(trace)))
    data = page_data(page)

    assert data["steps"] == STEPS
    loss = dict(data["curves"]["loss"]["training"])
    assert set(loss) == set(range(1, STEPS + 1))
    assert [step for step, value in loss.items() if value == "nan"] == list(range(17, STEPS + 1))
    assert data["grid"]["modules"][:3] == ["0 Linear", "1 ReLU", "2 Linear"]
    assert data["abnormal"]["step"] == 17
    assert data["sequences"][-1]["events"][-1].startswith("step")
    assert not re.search(r"(src|href)\s*=|https?://", page)
    assert "script-src 'sha256-" in page


def test_text_from_the_program_is_escaped(trace_of):
    trace = trace_of(make_program())
    script = "</script><script>alert(1)</script>"
    start = trace.start.model_copy(update={"program": (script,)})
    note = TraceNote(step=1, kind="untraced", text=script)
    page = replay_page(trace.model_copy(update={"start": start, "notes": (note,)}), ())

    assert script not in page
    assert page.count("</script>") == 2


@pytest.mark.parametrize(
    ("program_line", "title"),
    [
        (("-c", "--fork"), "a python -c program"),
        (("-",), "a program from standard input"),
        (("",), "a Python process"),
        (("/srv/train.py", "--rate", "1"), "train.py"),
        (("/srv/fits/__main__.py",), "fits"),
        (("-m",), "python -m"),
        ((), "a Python process"),
    ],
)
def test_a_page_is_named_after_the_program(trace_of, program_line, title):
    trace = trace_of(make_program())
    start = trace.start.model_copy(update={"program": program_line})
    page = replay_page(trace.model_copy(update={"start": start}), ())

    assert f"<title>Replay of {title}</title>" in page
    assert f"<h1>Replay of {title} <span" in page
    assert '<p class="soft">-' not in page


def test_a_page_can_be_renamed_after_the_training(trace_of):
    page = replay_page(trace_of(make_program()), ())
    renamed = rename_replay("R&D seed 0", page)

    assert "<title>Replay of R&amp;D seed 0</title>" in renamed
    assert "<h1>Replay of R&amp;D seed 0 <span" in renamed
    assert renamed.partition("</h1>")[2] == page.partition("</h1>")[2]


def test_a_decimated_curve_keeps_its_peaks_and_gaps():
    curve = [(step, math.sin(step / 5000)) for step in range(1, 100_001)]
    curve[70_000] = (70_001, 40.0)
    curve[90_000] = (90_001, math.nan)
    decimated = decimate(curve)

    assert len(decimated) <= MAX_POINTS
    assert (70_001, 40.0) in decimated
    assert any(math.isnan(value) for _, value in decimated)
    assert [step for step, _ in decimated] == sorted({step for step, _ in decimated})


def test_the_page_of_a_long_run_stays_small(trace_of):
    trace = trace_of(make_program())
    scalars = tuple(StepScalars(step=s, losses=(1 / s,)) for s in range(1, 100_001))
    long = trace.model_copy(update={"scalars": scalars})

    assert len(curves(long)["loss"]["training"]) <= MAX_POINTS
    assert len(replay_page(long, ())) < 300_000


def test_tensorboard_receives_the_same_points(trace_of, tmp_path):
    trace = trace_of(make_program())
    written = write_tensorboard(tmp_path / "traces", tmp_path / "logs")

    assert written == sum(
        len(curve) for lines in curves(trace).values() for curve in lines.values()
    )
    assert len(list((tmp_path / "logs").rglob("events.out.tfevents.*"))) == 1


@needs_chromium
@pytest.mark.slow
def test_axes_have_round_numbers_and_shares_start_at_0(trace_of, tmp_path):
    sync = pytest.importorskip("playwright.sync_api")
    trace_of(make_program())
    (path,) = write_replays(tmp_path / "traces")
    curves = [[12.1, 4.3], [2.38e11, 1e3], [1.0001, 1.0002], [-3, 5], [0.00109, 0.000906], [0, 0]]
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(path.as_uri())
        labels = page.evaluate(
            "(curves) => curves.map((values) => [values.map((value) => [1, value])])"
            ".map((lines) => ticksOf(scaleOf(lines, false)).map((tick) => tick[1]))",
            curves,
        )
        shares = page.evaluate(
            "[1, 0.02, 0.7].map((top) => ticksOf(scaleOf([[[1, 0], [2, top]]], true)))"
        )
        drawn_ticks = page.evaluate(
            "charts.filter((c) => c.title.startsWith('share')).map((c) => ticksOf(c.scale))"
        )
        browser.close()

    assert labels == [
        ["4", "6", "8", "10", "12"],
        ["1000", "1e6", "1e9"],
        ["1.0001", "1.00012", "1.00014", "1.00016", "1.00018", "1.0002"],
        ["-2", "0", "2", "4"],
        ["9e-4", "9.5e-4", "0.001", "0.00105"],
        ["0", "0.2", "0.4", "0.6", "0.8", "1"],
    ]
    assert len(drawn_ticks) == 1
    assert [ticks[0] for ticks in [*shares, *drawn_ticks]] == [[0, "0"]] * 4
    assert [ticks[-1][1] for ticks in shares] == ["1", "0.02", "0.6"]


@needs_chromium
@pytest.mark.slow
def test_the_heat_map_has_a_column_for_each_step_with_the_selected_statistic(trace_of, tmp_path):
    sync = pytest.importorskip("playwright.sync_api")
    trace_of(make_program())
    (path,) = write_replays(tmp_path / "traces")
    grid = {
        "modules": ["a", "b", "c"],
        "steps": [1, 2, 3],
        "forward": [[1, None, 2], [None, None, 3], [None, None, None]],
    }
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(path.as_uri())
        shown = page.evaluate("(grid) => { run.grid = grid; return mapValues(); }", grid)
        browser.close()

    assert shown == [[1, 3], [["a", [1, 2]], ["b", [None, 3]]]]


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_one_click_selects_the_abnormal_step(trace_of, tmp_path, width, monkeypatch):
    sync = pytest.importorskip("playwright.sync_api")
    monkeypatch.setattr(sys, "argv", [f"/home/{'long' * 20}/train.py"])
    trace_of(make_program(bad_step=17))
    (path,) = write_replays(tmp_path / "traces")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        page.locator("#back").click()
        page.get_by_text("step 16 of 40").wait_for(timeout=10_000)
        before = page.locator("#numbers").inner_text()
        page.locator("button.jump").first.click()
        page.get_by_text("step 17 of 40").wait_for(timeout=10_000)
        after = page.locator("#numbers").inner_text()
        page.get_by_text("zeros in outputs").click()
        pressed = page.locator("#kinds button[aria-pressed=true]").inner_text()
        too_wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        browser.close()

    assert errors == []
    assert "nan" in after
    assert "nan" not in before
    assert pressed == "zeros in outputs"
    assert not too_wide


@needs_chromium
@pytest.mark.slow
def test_events_after_the_last_step_are_not_shown_as_a_step(trace_of, tmp_path):
    sync = pytest.importorskip("playwright.sync_api")

    def program():
        make_program()()
        with torch.no_grad():
            make_network()(torch.randn(4, 8))

    trace_of(program)
    (path,) = write_replays(tmp_path / "traces")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(path.as_uri())
        page.evaluate(f"show({STEPS})")
        page.get_by_text(f"step {STEPS} of {STEPS}").wait_for(timeout=10_000)
        ranges = page.locator("#events small").all_inner_texts()
        browser.close()

    assert f"after the last step ({STEPS})" in ranges
    assert not any("alone has these events" in text for text in ranges)
