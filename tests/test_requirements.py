"""docs/requirements.md links existing tests and lists every code that tests refer to."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "requirements.md").read_text()
CODE = re.compile(
    r"\b(?:POC|SCH|GRAD|PRED|LOG|RESP|DATA|TRACE|TRAIN|REPRO|CONF|CODE|TUNE|EVAL|STAT|LLM|REG|ROLL|APPR|TRK|OBS|SEC)-\d+\b"
)
ROWS = re.findall(r"^\| ([A-Z]+-\d+) \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)


def test_every_code_is_listed_once():
    codes = [code for code, _, _ in ROWS]

    assert len(codes) == len(set(codes)) > 90


def test_every_requirement_is_proven_or_planned():
    unproven = {code for code, text, tests in ROWS if not tests.strip() and "lanned" not in text}

    assert unproven == set()


def test_linked_tests_exist():
    links = re.findall(r"\]\(([^)]+)\)", PAGE)

    assert len(links) > 150
    assert {link for link in links if not (ROOT / "docs" / link).is_file()} == set()


def test_codes_in_tests_are_listed():
    used = {
        code for path in (ROOT / "tests").rglob("*.py") for code in CODE.findall(path.read_text())
    }

    assert used - {code for code, _, _ in ROWS} == set()
