"""Lines that a planted-fault benchmark prints, one per run."""

from rich.text import Text


def result_line(result: str, style: str, text: str, *, seconds: float | None = None) -> Text:
    """Return one line: the result in one or two words, the duration, and a text.

    Args:
        result: Result in one or two words, such as 'missed'.
        style: Rich style of the result.
        text: Name of the run, and what was reported.
        seconds: Duration of the run [s]; no duration is printed if None.
    """
    duration = "" if seconds is None else f"{seconds:6.2f} s  "
    width = 14 if seconds is None else 15
    return Text.assemble((f"{result:<{width}}", style), f"{duration}{text}")
