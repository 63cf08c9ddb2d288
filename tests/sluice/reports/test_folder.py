"""Storage of report pages, their URLs, and the index of all pages."""

import os
import re
import time
from pathlib import Path

import pytest

from sluice.base.errors import StorageError
from sluice.base.home import Home
from sluice.reports.folder import DEFAULT_URL, save_page
from sluice.reports.index import index_page, list_pages
from sluice.reports.page import html_page, table, tag


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=tmp_path)


def test_equal_pages_share_a_file_and_different_pages_do_not(home: Home) -> None:
    first = save_page("<p>a", "x/y", home=home, environ={})
    same = save_page("<p>a", "x/y", home=home, environ={})
    other = save_page("<p>b", "x/y", home=home, environ={})

    assert first == same
    assert first.path.read_text() == "<p>a"
    assert other.path != first.path
    assert len(list(home.reports.rglob("*"))) == 3  # a folder and two pages, no temporary files


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({}, DEFAULT_URL),
        ({"SLUICE_REPORTS_URL": ""}, DEFAULT_URL),
        ({"SLUICE_REPORTS_URL": "http://127.0.0.1:4000/"}, "http://127.0.0.1:4000"),
    ],
)
def test_page_url_starts_with_the_configured_address(
    home: Home, environ: dict[str, str], address: str
) -> None:
    saved = save_page("<p>a", "a b/y", home=home, environ=environ)

    assert re.fullmatch(re.escape(f"{address}/a%20b/y-") + "[0-9a-f]{12}.html", saved.url)


def test_folder_that_cannot_be_written_raises_storage_error(home: Home) -> None:
    home.reports.write_text("a file")

    with pytest.raises(StorageError):
        save_page("<p>a", "y", home=home, environ={})


def test_page_makes_no_requests_and_escapes_text() -> None:
    page = html_page("a < b", table(["<n>"], [[tag("<script>")]]))

    assert "<title>a &lt; b</title>" in page
    assert "&lt;n&gt;" in page
    assert "<script>" not in page
    assert "default-src 'none'" in page
    assert re.search(r"https?://|//[a-z]|@import|url\(", page) is None


def test_pages_are_listed_newest_first_with_titles_and_without_parts(tmp_path: Path) -> None:
    for age, name in enumerate(["b.html", "replay/index.html", "a/c.html"]):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"<html><TITLE>\n {name} &amp; more</title>")
        os.utime(path, (1000 - age, 1000 - age))
    (tmp_path / "replay" / "frame.html").write_text("part of the replay")
    (tmp_path / ".half.html").write_text("being written")
    (tmp_path / "data.json").write_text("{}")

    listed = list_pages(tmp_path)

    assert [page.path for page in listed] == ["b.html", "replay/", "a/c.html"]
    assert listed[0].title == "b.html & more"


def test_titles_in_the_index_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text("<title>&lt;script&gt;alert(1)&lt;/script&gt;</title>")

    page = index_page(tmp_path)

    assert "&lt;script&gt;alert(1)" in page
    assert "<script>" not in page


@pytest.mark.parametrize(
    ("body", "outcome", "tone"),
    [
        (f"<h1>x</h1><p>{tag('2 < 3', 'bad')} of 5</p><h2>y</h2>", "2 < 3", "bad"),
        (f"<h1>x</h1><p>{tag('all hold', 'good')}{tag('new')}</p>", "all hold", "good"),
        (f"<h1>x</h1><div class=card>{tag('one part', 'bad')}</div>", "", "plain"),
        (f"<h1>x</h1><h2>{tag('one part', 'bad')}</h2>", "", "plain"),
        ("<h1>x</h1>", "", "plain"),
    ],
)
def test_index_shows_the_outcome_of_each_page(
    tmp_path: Path, body: str, outcome: str, tone: str
) -> None:
    (tmp_path / "x.html").write_text(html_page("X", body))

    (page,) = list_pages(tmp_path)

    assert (page.outcome, page.tone) == (outcome, tone)
    assert (tag(page.outcome, page.tone) in index_page(tmp_path)) == bool(outcome)


def test_index_of_a_missing_folder_states_that_there_are_no_reports(tmp_path: Path) -> None:
    assert "There are no reports yet" in index_page(tmp_path / "gone")


def test_index_has_times_in_utc_and_hides_a_column_on_small_screens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    (tmp_path / "a.html").write_text("<html><title>a</title>")
    os.utime(tmp_path / "a.html", (0, 0))

    page = index_page(tmp_path)
    monkeypatch.undo()
    time.tzset()

    assert "written [UTC]" in page
    assert '<span class="part">1970-01-01</span> <span class="part">00:00:00</span>' in page
    assert "td:nth-child(4){display:none}" in page
