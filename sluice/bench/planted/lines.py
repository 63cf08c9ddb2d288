"""Output of a planted-fault benchmark: one line per run."""

from rich.text import Text


def result_line(word: str, style: str, text: str, *, seconds: float | None = None) -> Text:
    """Return one line: the result in one or two words, the duration, and what was reported.

    Args:
        word: Result, such as 'missed'.
        style: Style of the result.
        text: Name of the run, and what was reported.
        seconds: Duration of the run [s]; None leaves it out.
    """
    duration = "" if seconds is None else f"{seconds:6.2f} s  "
    width = 14 if seconds is None else 15
    return Text.assemble((f"{word:<{width}}", style), f"{duration}{text}")
