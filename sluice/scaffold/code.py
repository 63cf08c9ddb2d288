"""Formats generated code: wrapped comments and calls, class names, and YAML mappings."""

import json
import re
import textwrap
from collections.abc import Iterable
from typing import Any

_MAX_COMMENT_CHARS = 92
"""Maximum length of a line that contains only a comment [characters]."""

_MAX_LINE_CHARS = 100
"""Maximum length of any other generated line, including a comment at its end [characters]."""

_YAML_WORD = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][\w./-]*", re.IGNORECASE
)
"""Matches a string that YAML reads as a string without quotes."""

_STRING_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')
"""Matches a string literal in generated code."""

_SPACE_PLACEHOLDER = "\ufdd0"
"""Replaces a space within a string literal while lines are wrapped; Unicode has no character with
this code."""


def comment(text: str, *, indent: int = 0) -> str:
    """Return a text as comment lines.

    >>> comment("Rows are independent.", indent=4)
    '    # Rows are independent.'
    """
    margin = " " * indent + "# "
    return "\n".join(
        margin + line
        for line in textwrap.wrap(" ".join(text.split()), _MAX_COMMENT_CHARS - len(margin))
    )


def with_comment(code: str, reason: str, *, indent: int) -> str:
    """Return code with a comment at the end of the line; above the code if it would be too long."""
    line = f"{' ' * indent}{code}  # {' '.join(reason.split())}"
    if len(line) <= _MAX_LINE_CHARS:
        return line
    return f"{comment(reason, indent=indent)}\n{' ' * indent}{wrap_call(code, indent=indent)}"


def wrap_call(code: str, *, indent: int) -> str:
    """Return a call; if it is too long for one line, its arguments are on separate lines."""
    if indent + len(code) <= _MAX_LINE_CHARS or "(" not in code:
        return code
    call_name, _, rest = code.partition("(")
    margin = " " * (indent + 4)
    arguments = rest.removesuffix(",").removesuffix(")")
    body = textwrap.wrap(
        # A line must not end within a string literal.
        _STRING_LITERAL.sub(lambda literal: literal[0].replace(" ", _SPACE_PLACEHOLDER), arguments),
        _MAX_LINE_CHARS - len(margin),
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = "\n".join([f"{call_name}(", *body, f"{' ' * indent}),"])
    return lines.replace(_SPACE_PLACEHOLDER, " ")


def class_name(name: str) -> str:
    """Return the name of the workload class of a pipeline.

    >>> class_name("my_model")
    'MyModel'
    """
    return "".join(part.capitalize() for part in re.split(r"[^0-9a-zA-Z]+", name) if part)


def join_lines(parts: Iterable[str | None]) -> str:
    """Return the content of a file that has each part on separate lines; None is left out."""
    return "\n".join(part for part in parts if part is not None) + "\n"


def flow_mapping(values: dict[str, Any]) -> str:
    """Return a mapping in YAML's flow style, with values as JSON, which is valid YAML."""
    entries = (f"{key}: {_yaml_value(value)}" for key, value in values.items())
    return f"{{{', '.join(entries)}}}"


def _yaml_value(value: Any) -> str:
    is_word = isinstance(value, str) and _YAML_WORD.fullmatch(value) is not None
    return str(value) if is_word else json.dumps(value, ensure_ascii=False)
