"""The replay of a run: one page that shows the first bad step in a real browser (TRACE-15)."""

import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from sluice.trace.diagnosis import diagnose
from sluice.trace.evidence.measures import StepNumbers
from sluice.trace.evidence.trace import Note
from sluice.trace.replay.abnormal import first_abnormal
from sluice.trace.replay.page import replay_of, replay_page
from sluice.trace.replay.series import MOST_POINTS, curves, thin
from sluice.trace.replay.write import write_replays, write_tensorboard
from sluice.trace.rules.library import judge

CHROMIUM = Path("/usr/bin/chromium")
needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium")
STEPS = 40


def net(bias=0.0):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        model[0].bias.fill_(bias)
    return model


def program(*, bad_step=None, bias=0.0):
    def run():
        model = net(bias)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(64, 8), torch.randint(3, (64,))
        for step in range(1, STEPS + 1):
            batch = x.clone()
            if step == bad_step:
                batch[3, 5] = math.nan
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return run


def data_of(page):
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', page)
    return json.loads(found[1])


def test_the_first_abnormal_tensor_is_marked_at_its_step(trace_of):
    found = first_abnormal(trace_of(program(bad_step=17)))

    assert found.step == 17
    assert first_abnormal(trace_of(program())) is None


def test_a_layer_of_dead_units_is_abnormal_from_the_start(trace_of):
    found = first_abnormal(trace_of(program(bias=-50.0)))

    assert (found.step, found.tensor) == (1, "output of Sequential.1")
    assert found.what == "all 1,024 numbers are 0"


def test_the_page_holds_every_curve_and_fetches_nothing(trace_of):
    trace = trace_of(program(bad_step=17))
    page = replay_page(trace, diagnose(judge(trace)))
    told = data_of(page)

    assert told["steps"] == STEPS
    loss = dict(told["curves"]["loss"]["training"])
    assert set(loss) == set(range(1, STEPS + 1))
    assert [step for step, value in loss.items() if value == "nan"] == list(range(17, STEPS + 1))
    assert told["grid"]["modules"][:3] == ["0 Linear", "1 ReLU", "2 Linear"]
    assert told["abnormal"]["step"] == 17
    assert told["words"][-1]["marks"][-1].startswith("step")
    assert not re.search(r"(src|href)\s*=|https?://", page)
    assert "script-src 'sha256-" in page


def test_text_of_the_program_cannot_leave_its_place(trace_of):
    trace = trace_of(program())
    evil = "</script><script>alert(1)</script>"
    start = trace.start.model_copy(update={"program": (evil,)})
    note = Note(step=1, kind="blind", text=evil)
    page = replay_page(trace.model_copy(update={"start": start, "notes": (note,)}), ())

    assert evil not in page
    assert page.count("</script>") == 2


@pytest.mark.parametrize(
    ("program_line", "title"),
    [
        (("-c", "--fork"), "python -c"),
        (("/srv/train.py", "--rate", "1"), "train.py"),
        (("/srv/fits/__main__.py",), "fits"),
        (("-m",), "python -m"),
        ((), "a Python process"),
    ],
)
def test_a_page_is_called_after_what_a_reader_knows(trace_of, program_line, title):
    trace = trace_of(program())
    start = trace.start.model_copy(update={"program": program_line})
    page = replay_page(trace.model_copy(update={"start": start}), ())

    assert f"<title>Replay of {title}</title>" in page
    assert f"<h1>Replay of {title} <span" in page
    assert '<p class="soft">-' not in page


def test_a_page_can_be_called_after_the_training(trace_of):
    page = replay_page(trace_of(program()), ())
    called = replay_of("R&D seed 0", page)

    assert "<title>Replay of R&amp;D seed 0</title>" in called
    assert "<h1>Replay of R&amp;D seed 0 <span" in called
    assert called.partition("</h1>")[2] == page.partition("</h1>")[2]


def test_a_long_curve_keeps_its_spikes_and_its_gaps():
    curve = [(step, math.sin(step / 5000)) for step in range(1, 100_001)]
    curve[70_000] = (70_001, 40.0)
    curve[90_000] = (90_001, math.nan)
    short = thin(curve)

    assert len(short) <= MOST_POINTS
    assert (70_001, 40.0) in short
    assert any(math.isnan(value) for _, value in short)
    assert [step for step, _ in short] == sorted({step for step, _ in short})


def test_the_page_of_a_long_run_stays_small(trace_of):
    trace = trace_of(program())
    numbers = tuple(StepNumbers(step=s, losses=(1 / s,)) for s in range(1, 100_001))
    long = trace.model_copy(update={"numbers": numbers})

    assert len(curves(long)["loss"]["training"]) <= MOST_POINTS
    assert len(replay_page(long, ())) < 300_000


def test_tensorboard_gets_the_same_points(trace_of, tmp_path):
    trace = trace_of(program())
    written = write_tensorboard(tmp_path / "traces", tmp_path / "logs")

    assert written == sum(len(c) for lines in curves(trace).values() for c in lines.values())
    assert len(list((tmp_path / "logs").rglob("events.out.tfevents.*"))) == 1


@needs_chromium
@pytest.mark.slow
def test_the_axis_of_a_share_begins_at_0(trace_of, tmp_path):
    sync = pytest.importorskip("playwright.sync_api")
    trace_of(program())
    (path,) = write_replays(tmp_path / "traces")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(path.as_uri())
        marks = page.evaluate(
            "[0, 0.02, 0.7].map((top) => marksOf(scaleOf([[[1, 0], [2, top]]], true)))"
        )
        zero = page.evaluate("marksOf(scaleOf([[[1, 0], [2, 0]]], false))")
        drawn = page.evaluate(
            "charts.filter((c) => c.title.startsWith('share')).map((c) => marksOf(c.scale))"
        )
        browser.close()

    assert len(drawn) == 1
    assert marks == [pytest.approx([0, t / 3, 2 * t / 3, t]) for t in (1, 0.02, 0.7)]
    assert [each[0] for each in [*marks, zero, *drawn]] == [0] * 5


@needs_chromium
@pytest.mark.slow
def test_the_map_has_a_column_for_each_step_at_which_what_is_shown_was_measured(trace_of, tmp_path):
    sync = pytest.importorskip("playwright.sync_api")
    trace_of(program())
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
        shown = page.evaluate("(grid) => { run.grid = grid; return mapOf(); }", grid)
        browser.close()

    assert shown == [[1, 3], [["a", [1, 2]], ["b", [None, 3]]]]


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_a_reader_goes_to_the_bad_step_with_one_click(trace_of, tmp_path, width, monkeypatch):
    sync = pytest.importorskip("playwright.sync_api")
    monkeypatch.setattr(sys, "argv", [f"/home/{'long' * 20}/train.py"])
    trace_of(program(bad_step=17))
    (path,) = write_replays(tmp_path / "traces")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        troubles: list[str] = []
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
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

    assert troubles == []
    assert "nan" in after
    assert "nan" not in before
    assert pressed == "zeros in outputs"
    assert not too_wide
