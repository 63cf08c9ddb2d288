"""Names and sentences use the standard terms of the field; public class names are unique."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("sluice", "assets", "checks", "pipelines")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]

BANNED_PHRASES = re.compile(
    r"""(?<![\w./`'-])(?:
        told | tells? | telling | hears? | heard | hearing
        | meets? | met | meeting | stands? | stood | standing | lies | lie | lay | lying | rests
        | look(?:s|ed|ing)?[ ](?:at|on|like[ ]it) | (?:leaves?|left)[ ]behind
        | (?:brings?|brought)[ ]about | (?:comes?|came)[ ]to
        | anew | so[ ]many | there[ ](?:is|are|was|were)[ ]none | by[ ]hand | whoever
        | as[ ]it[ ]came | of[ ]its[ ]own[ ]accord | nobody[ ]looks?
    )(?![\w'-])""",
    re.IGNORECASE | re.VERBOSE,
)
"""Verbs used as metaphors and old-fashioned phrases, each with a plain technical equivalent:
report, record, receive, compare, store, contain, inspect, sample, cause, again, manually.
"""

BANNED_WORDS = frozenset(
    {"told", "tell", "tells", "hear", "heard", "hears", "meet", "meets", "met", "stands", "stood"}
    | {"lies", "lie", "rests", "anew", "whoever", "least", "most", "fewest", "hardly"}
)
"""Words that no part of a name may be; a limit is ``min_`` or ``max_`` with noun and unit."""

ALLOWED_PARTS = re.compile(r"at_(?:most|least)|most_(?:common|recent)|least_(?:squares|recent)")
"""Terms of the field, and of libraries, that contain such a word."""

PLAIN_TEXT_CODES = re.compile(
    r"\b(?:POC|TRACE|STAT|REG|ROLL|TUNE|TRAIN|DATA|SCH|GRAD|PRED|EVAL|RESP|REPRO|OBS|TRK|LOG|CODE"
    r"|LLM|SEC)-\d+\b"
)
"""Requirement codes, which belong in docs/requirements.md and in tests."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every string and comment of a source file with its line; every line of a page."""
    source = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield token.start[0], token.string


def banned_phrases(text: str) -> list[str]:
    """Return the banned phrases of a text; line breaks count as spaces."""
    return [found.group() for found in BANNED_PHRASES.finditer(" ".join(text.split()))]


def defined_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the names that a module defines, parameters and attributes included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def banned_parts(name: str) -> set[str]:
    """Return the banned words among the parts of a name."""
    snake_case = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return BANNED_WORDS & set(ALLOWED_PARTS.sub("", snake_case).split("_"))


def problems(path: Path) -> list[str]:
    """Return every violation of one file as "line: what"."""
    found = [f"{line}: {phrase!r}" for line, text in texts(path) for phrase in banned_phrases(text)]
    found += [
        f"{line}: code {code}"
        for line, text in texts(path)
        for code in PLAIN_TEXT_CODES.findall(text)
        if path.name != "requirements.md"
    ]
    if path.suffix == ".py":
        names = defined_names(ast.parse(path.read_text()))
        found += [f"{line}: name {name}" for line, name in names if banned_parts(name)]
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What is told of a run.", ["told"]),
        ("Looked at\n    again.", ["Looked at"]),
        ("The look-ahead check; a stand-in; the lookup.", []),
        ("Reports the outstanding requests.", []),
        ("There are none.", ["There are none"]),
    ],
)
def test_phrase_rule_reports_banned_phrases(text, found):
    assert banned_phrases(text) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("_LEAST_ROWS", {"least"}),
        ("toldBefore", {"told"}),
        ("storytelling", set()),
        ("_at_most", set()),
    ],
)
def test_name_rule_reports_banned_words(name, found):
    assert banned_parts(name) == found


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda p: str(p.relative_to(ROOT)))
def test_file_uses_standard_terms(path):
    assert problems(path) == []


def test_public_class_names_are_defined_once():
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert {name: where for name, where in places.items() if len(where) > 1} == {}
