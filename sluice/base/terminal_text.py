"""Text for a terminal: what would steer the terminal is spelled out."""

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed; ESC is \x1b
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of writing
    "\u2028\u2029]"  # line and paragraph separator
)


def printable(text: str) -> str:
    r"""Return text in which every control character is spelled out.

    A text from a file or from another person can hold escape codes, which clear the screen, write
    over earlier lines, or set the clipboard of the person who reads it.

    >>> printable("evil\x1b[2J\r\u202e")
    'evil\\x1b[2J\\r\\u202e'
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
