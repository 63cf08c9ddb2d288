"""Where results go: stdout, as wide as the terminal, or wide enough for tables when it is none."""

import os
import sys

from rich.console import Console

PLAIN_WIDTH = 120
"""Characters per line in a file or a pipe, where there is no window to fit."""


def results(*, markup: bool = True) -> Console:
    """Return the console for results; progress and errors go to stderr instead.

    Args:
        markup: False prints square brackets as they are.
    """
    fits_itself = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(
        file=sys.stdout,
        markup=markup,
        highlight=False,
        emoji=False,
        width=None if fits_itself else PLAIN_WIDTH,
    )
