"""DATA-1: what was found, as a page a person can open without a network."""

import re
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sluice.checks.data_docs import expectations_page
from sluice.checks.expectations import TableValidation, validate_table
from sluice.data.expectations import (
    Between,
    Expectation,
    GreaterOrEqual,
    InSet,
    NotNull,
    RowCount,
    StdBetween,
)

pytestmark = pytest.mark.slow  # the engine's import takes 2 to 4 s
CHROMIUM = Path("/usr/bin/chromium")

SUITE = (
    RowCount(low=100),
    NotNull(column="low"),
    Between(column="low", low=50, high=60),
    GreaterOrEqual(column="high", other="low"),
    InSet(column="venue", values=("A", "B")),
    StdBetween(column="high", low=0.01, high=9),
)


@pytest.fixture
def bars() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    low = rng.uniform(50, 60, 200)
    return pd.DataFrame(
        {"low": low, "high": low + 1, "venue": "A"},
        index=pd.date_range("2001-01-01", periods=200, name="date"),
    )


def judged(frame: pd.DataFrame, expectations: tuple[Expectation, ...] = SUITE) -> TableValidation:
    return validate_table(frame, expectations, suite="echo_raw")


def page(frame: pd.DataFrame, expectations: tuple[Expectation, ...] = SUITE) -> str:
    return expectations_page(
        judged(frame, expectations), title="echo / raw", digest="0123456789abcdef"
    )


def text(html: str) -> str:
    words = re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(words).split())


def test_a_page_shows_suite_outcome_and_every_column(bars: pd.DataFrame) -> None:
    said = text(page(bars))

    for part in ("echo / raw", "passed", "8 of 8 expectations pass on 200 rows", "echo_raw"):
        assert part in said
    assert "0123456789ab" in said
    assert "Expectations that did not pass" not in said
    assert said.count("Observed Value") == 4  # the engine's tables: the table's own, three columns
    assert said.index("Table-Level") < said.index(" low Status") < said.index(" high Status")
    assert f"{bars['high'].std():.9f}"[:8] in said, "the engine shows the number it measured"


def test_bad_rows_are_on_top_with_their_labels(bars: pd.DataFrame) -> None:
    bars.iloc[7, 0], bars.iloc[9, 0] = 70.0, np.nan

    said = text(page(bars))

    top = said[: said.index("All measured expectations")]
    assert "low is between 50 and 60 in every row. failed 1 of 199 rows" in top
    assert "2001-01-08 7 70" in top
    assert "high is at least low in every row. failed" in top
    assert "row position (from 0) high and low" in top
    assert "2001-01-10 9 no value" in top
    assert "1 unexpected values found" in said[len(top) :]


def test_an_unmeasurable_reason_is_listed_once(bars: pd.DataFrame) -> None:
    said = text(page(bars.rename(columns={"low": "lo"})))

    assert said.count("Column 'low' is missing. Did you mean 'lo'?") == 1
    assert "low is between 50 and 60" in said


@pytest.mark.parametrize("frame_rows", [0, 200])
def test_pages_exist_when_the_engine_measured_nothing(bars: pd.DataFrame, frame_rows: int) -> None:
    assert "could not be measured" in text(page(bars.iloc[:frame_rows], (NotNull(column="gone"),)))
    assert "0 of 0 expectations pass" in text(page(bars, ()))


def test_the_same_table_gives_the_same_bytes(bars: pd.DataFrame) -> None:
    bars.iloc[7, 0] = 70.0

    assert page(bars) == page(bars.copy())


def test_a_page_fetches_nothing_and_runs_nothing(bars: pd.DataFrame) -> None:
    bars.iloc[7, 0] = 70.0
    html = page(bars)

    assert re.search(r"https?://|src=|@import|url\(|<script|<link|<iframe", html) is None


def test_text_in_the_data_stays_text(bars: pd.DataFrame) -> None:
    """A cell, a column, an allowed value and a label that look like HTML."""
    evil = "<img src=$x onerror=alert(1)>"
    bars = bars.rename(columns={"venue": f"v{evil}"})
    bars.iloc[3, 2] = evil
    bars.index = [evil] * 200
    html = page(bars, (InSet(column=f"v{evil}", values=("A", f"ok{evil}")), NotNull(column=evil)))

    assert "<img" not in html
    assert "<h5" in html
    assert html.count("&lt;img src=$x") > 3
    assert "$$" not in html


def test_numbers_show_without_their_machine_type(bars: pd.DataFrame) -> None:
    """The engine's renderer prints or refuses NumPy 2 scalars."""
    bars.iloc[7, 1] = 0.0

    assert "np.float64" not in page(bars)


@pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium at /usr/bin/chromium")
def test_a_browser_without_a_network_shows_it_whole(bars: pd.DataFrame, tmp_path: Path) -> None:
    sync = pytest.importorskip("playwright.sync_api")
    bars.iloc[7, 0] = 70.0
    file = tmp_path / "page.html"
    file.write_text(page(bars))
    asked, complaints = [], []
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        shown = browser.new_page(viewport={"width": 1000, "height": 800}, offline=True)
        shown.on("request", lambda r: asked.append(r.url))
        shown.on("console", lambda m: complaints.append(m.text))
        shown.goto(file.as_uri())
        tick = shown.evaluate(
            "getComputedStyle(document.querySelector('.fa-check-circle'), '::before').content"
        )
        wide = shown.evaluate("document.documentElement.scrollWidth")
        browser.close()

    assert asked == [file.as_uri()]
    assert complaints == []
    assert tick == '"\u2713"'
    assert wide <= 1000, "nothing sticks out at the side"
