"""Takes the pictures of the documentation from the reports and the UI of a real run.

`make pictures` runs the default pipeline and a rehearsal in a temporary SLUICE_HOME, which takes
some minutes. `python docs/pictures.py --home FOLDER` uses an existing SLUICE_HOME instead. Chromium
must be installed.
"""

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

DOCS = Path(__file__).resolve().parent
PIPELINE = "sp500_volatility"
MAX_START_S = 180
"""Maximum time until Dagster's UI responds [s]."""


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description="Take the pictures of the documentation.")
    parser.add_argument("--home", type=Path, help="existing SLUICE_HOME with a run and a rehearsal")
    existing_home = parser.parse_args().home
    with tempfile.TemporaryDirectory() as folder:
        home = (existing_home or make_run(Path(folder) / "home")).resolve()
        replay = make_replay(Path(folder))
        with open_browser() as page:
            take_element(page, newest_report(home, "gate/*.html"), "img", "promotion-verdict")
            rehearsal = newest_report(home, f"rehearsals/{PIPELINE}/errors-*.html")
            take_page(page, rehearsal, "rollout-rehearsal", width=840, height=1430)
            take_page(page, replay, "replay", width=1180, height=1180)
            with run_dagster_ui(home) as url:
                take_asset_graph(page, url)


def make_run(home: Path) -> Path:
    """Run the default pipeline, rehearse a rollout with a fault, and return ``home``."""
    environment = os.environ | {"SLUICE_HOME": str(home)}
    for command in (
        ("run", PIPELINE, "--no-rehearsal"),
        ("rollout", "rehearse", PIPELINE, "--fault", "errors"),
    ):
        subprocess.run([*sluice_command(), *command], env=environment, check=True)
    return home


def make_replay(folder: Path) -> Path:
    """Trace the first program of the guide about training faults, and return its replay page."""
    guide = (DOCS / "how-to" / "find-training-faults.md").read_text()
    program = guide.partition("```python\n")[2].partition("```")[0]
    (folder / "train.py").write_text(program)
    trace_command = ("trace", "--out", "traces", "--", sys.executable, "train.py")
    for command in (trace_command, ("trace", "replay", "traces")):
        subprocess.run(
            [*sluice_command(), *command], cwd=folder, env=checkout_environment(), check=True
        )
    return next(folder.glob("traces/*/replay.html"))


def sluice_command() -> tuple[str, ...]:
    """Return the command that starts Sluice from this checkout."""
    return (sys.executable, "-m", "sluice")


def checkout_environment() -> dict[str, str]:
    """Return environment variables with which Python imports this checkout from any folder."""
    return os.environ | {"PYTHONPATH": str(DOCS.parent)}


def newest_report(home: Path, pattern: str) -> Path:
    """Return the newest report that matches a pattern."""
    return max((home / "reports").glob(pattern), key=lambda path: path.stat().st_mtime)


@contextmanager
def open_browser() -> Iterator[Page]:
    """Yield a page of a headless Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser.new_page(color_scheme="light")
        browser.close()


@contextmanager
def run_dagster_ui(home: Path) -> Iterator[str]:
    """Run `sluice dev` on a free port, and yield the URL of Dagster's UI."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = checkout_environment() | {"SLUICE_HOME": str(home)}
    command = [*sluice_command(), "dev", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{port}/server_info")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def wait_for(url: str) -> None:
    """Wait until a server responds.

    Raises:
        TimeoutError: The server did not respond within ``MAX_START_S``.
    """
    deadline = time.monotonic() + MAX_START_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise TimeoutError(f"{url} did not respond within {MAX_START_S} s.")


def take_element(page: Page, report: Path, selector: str, name: str) -> None:
    """Store a picture of the first element of a report that matches a CSS selector."""
    page.set_viewport_size({"width": 1000, "height": 900})
    page.goto(report.as_uri())
    page.locator(selector).first.screenshot(path=DOCS / f"{name}.png")


def take_page(page: Page, report: Path, name: str, *, width: int, height: int) -> None:
    """Store a picture of the upper part of a report [pixels]."""
    page.set_viewport_size({"width": width, "height": height})
    page.goto(report.as_uri())
    page.wait_for_timeout(1_000)
    page.screenshot(path=DOCS / f"{name}.png")


def take_asset_graph(page: Page, url: str) -> None:
    """Store a picture of the asset graph of the default pipeline."""
    page.set_viewport_size({"width": 1800, "height": 1000})
    selection = quote(f'key:"{PIPELINE}/*"', safe="*")
    group = quote(f"global@global:{PIPELINE}", safe="")
    page.goto(f"{url}/asset-groups~{selection}/?expanded={group}")
    page.get_by_text(re.compile("production_model")).first.wait_for(timeout=MAX_START_S * 1000)
    page.wait_for_timeout(5_000)
    skip_button = page.get_by_text("Skip", exact=True)
    if skip_button.count():  # a new Dagster instance shows a welcome dialog
        skip_button.first.click()
    page.get_by_text("Hide navigation").click()
    page.wait_for_timeout(2_000)
    graph_area = {"x": 372, "y": 308, "width": 1270, "height": 440}  # in pixels of the viewport
    page.screenshot(path=DOCS / "asset-graph.png", clip=graph_area)


if __name__ == "__main__":
    main()
