"""Prints results on stdout, with a fixed width if stdout is not a terminal."""

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sluice.base.settings import Record
from sluice.base.terminal_text import escape_control_characters

PLAIN_WIDTH = 120
"""Width of the output to a file or a pipe [characters]."""


class SafeConsole(Console):
    """A console that escapes control characters in the texts it prints.

    The texts may come from an imported version, a client or another user of the registry. All
    results except JSON are printed through this class. The JSON encoder escapes control characters
    itself.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable; control characters in their texts are escaped."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(escape_control_characters(segment.text), segment.style)


def results_console(*, markup: bool = True) -> Console:
    """Return the console for results. Progress and errors are printed on stderr instead.

    Args:
        markup: Whether texts contain Rich markup. Without markup, square brackets are printed
            unchanged.
    """
    is_width_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return SafeConsole(
        file=sys.stdout,
        markup=markup,
        highlight=False,
        emoji=False,
        width=None if is_width_known else PLAIN_WIDTH,
    )


def print_json(value: Record | Mapping[str, Any] | list[Any] | None) -> None:
    """Print a value as JSON, in which NaN and infinity become null."""
    sys.stdout.write(json.dumps(_to_strict_json(value), indent=2) + "\n")


def _to_strict_json(value: Any) -> Any:
    if isinstance(value, Record):
        return _to_strict_json(value.model_dump(mode="json"))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _to_strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_strict_json(item) for item in value]
    return value
