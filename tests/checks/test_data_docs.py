"""The Data Docs page of a validation, readable without a network (DATA-1)."""

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


def validate(frame: pd.DataFrame, expectations: tuple[Expectation, ...] = SUITE) -> TableValidation:
    return validate_table(frame, expectations, suite="echo_raw")


def render_page(frame: pd.DataFrame, expectations: tuple[Expectation, ...] = SUITE) -> str:
    return expectations_page(
        validate(frame, expectations), title="echo / raw", digest="0123456789abcdef"
    )


def extract_text(html: str) -> str:
    words = re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(words).split())


def test_page_shows_suite_outcome_and_every_column(bars: pd.DataFrame) -> None:
    text = extract_text(render_page(bars))

    for part in ("echo / raw", "passed", "8 of 8 expectations pass on 200 rows", "echo_raw"):
        assert part in text
    assert "0123456789ab" in text
    assert "Expectations that did not pass" not in text
    # Tables of the engine: one for the whole table, and one for each of three columns.
    assert text.count("Observed Value") == 4
    assert text.index("Table-Level") < text.index(" low Status") < text.index(" high Status")
    assert f"{bars['high'].std():.9f}"[:8] in text, "the observed value is missing"


def test_bad_rows_are_at_the_top_with_their_labels(bars: pd.DataFrame) -> None:
    bars.iloc[7, 0], bars.iloc[9, 0] = 70.0, np.nan

    text = extract_text(render_page(bars))

    top = text[: text.index("All measured expectations")]
    assert "low is between 50 and 60 in every row. failed 1 of 199 rows" in top
    assert "2001-01-08 7 70" in top
    assert "high is at least low in every row. failed" in top
    assert "row position (from 0) high and low" in top
    assert "2001-01-10 9 no value" in top
    assert "1 unexpected values found" in text[len(top) :]


def test_reason_of_unmeasurable_expectations_is_listed_once(bars: pd.DataFrame) -> None:
    text = extract_text(render_page(bars.rename(columns={"low": "lo"})))

    assert text.count("Column 'low' is missing. Did you mean 'lo'?") == 1
    assert "low is between 50 and 60" in text


@pytest.mark.parametrize("frame_rows", [0, 200])
def test_page_is_rendered_without_any_measurement(bars: pd.DataFrame, frame_rows: int) -> None:
    assert "could not be measured" in extract_text(
        render_page(bars.iloc[:frame_rows], (NotNull(column="gone"),))
    )
    assert "0 of 0 expectations pass" in extract_text(render_page(bars, ()))


def test_equal_tables_give_identical_pages(bars: pd.DataFrame) -> None:
    bars.iloc[7, 0] = 70.0

    assert render_page(bars) == render_page(bars.copy())


def test_page_contains_no_script_and_no_external_resource(bars: pd.DataFrame) -> None:
    bars.iloc[7, 0] = 70.0
    html = render_page(bars)

    assert re.search(r"https?://|src=|@import|url\(|<script|<link|<iframe", html) is None


def test_html_in_the_data_is_escaped(bars: pd.DataFrame) -> None:
    """A cell, a column, an allowed value and a label that look like HTML."""
    evil = "<img src=$x onerror=alert(1)>"
    bars = bars.rename(columns={"venue": f"v{evil}"})
    bars.iloc[3, 2] = evil
    bars.index = [evil] * 200
    html = render_page(
        bars, (InSet(column=f"v{evil}", values=("A", f"ok{evil}")), NotNull(column=evil))
    )

    assert "<img" not in html
    assert "<h5" in html
    assert html.count("&lt;img src=$x") > 3
    assert "$$" not in html


def test_numbers_are_shown_without_their_numpy_type(bars: pd.DataFrame) -> None:
    """The engine's renderer prints or refuses NumPy 2 scalars."""
    bars.iloc[7, 1] = 0.0

    assert "np.float64" not in render_page(bars)


@pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium at /usr/bin/chromium")
def test_offline_browser_shows_the_page_without_errors(bars: pd.DataFrame, tmp_path: Path) -> None:
    sync = pytest.importorskip("playwright.sync_api")
    bars.iloc[7, 0] = 70.0
    file = tmp_path / "page.html"
    file.write_text(render_page(bars))
    requests, console_messages = [], []
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 800}, offline=True)
        page.on("request", lambda r: requests.append(r.url))
        page.on("console", lambda m: console_messages.append(m.text))
        page.goto(file.as_uri())
        check_mark = page.evaluate(
            "getComputedStyle(document.querySelector('.fa-check-circle'), '::before').content"
        )
        page_width = page.evaluate("document.documentElement.scrollWidth")
        browser.close()

    assert requests == [file.as_uri()]
    assert console_messages == []
    assert check_mark == '"\u2713"'
    assert page_width <= 1000, "the page is wider than the window"
