"""Escapes control characters in text that is printed on a terminal."""

import re

_UNSAFE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and line feed; \x1b is ESC
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional control characters
    "\u2028\u2029]"  # line and paragraph separator
)


def escape_control_characters(text: str) -> str:
    r"""Return text with a backslash escape in place of every control character.

    Untrusted text can contain escape codes that clear the screen, overwrite earlier lines, or set
    the reader's clipboard.

    >>> escape_control_characters("evil\x1b[2J\r\u202e")
    'evil\\x1b[2J\\r\\u202e'
    """
    return _UNSAFE_CHARACTERS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
