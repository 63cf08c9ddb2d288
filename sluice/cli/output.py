"""Where results go: stdout, as wide as the terminal, or wide enough for tables when it is none."""

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sluice.base.settings import Record
from sluice.base.terminal_text import printable

PLAIN_WIDTH = 120
"""Characters per line in a file or a pipe, where there is no window to fit."""


class SafeConsole(Console):
    """A console that writes no control characters but its own.

    What is printed may come from an imported version, a client or another user of the registry,
    and every result goes through here, whoever prints it.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable with the control characters of texts spelled out."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def results(*, markup: bool = True) -> Console:
    """Return the console for results; progress and errors go to stderr instead.

    Args:
        markup: False prints square brackets as they are.
    """
    fits_itself = sys.stdout.isatty() or "COLUMNS" in os.environ
    return SafeConsole(
        file=sys.stdout,
        markup=markup,
        highlight=False,
        emoji=False,
        width=None if fits_itself else PLAIN_WIDTH,
    )


def print_json(value: Record | Mapping[str, Any] | list[Any] | None) -> None:
    """Print for machines: strict JSON, where numbers that are not finite are null."""
    sys.stdout.write(json.dumps(_strict(value), indent=2) + "\n")


def _strict(value: Any) -> Any:
    if isinstance(value, Record):
        return _strict(value.model_dump(mode="json"))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
