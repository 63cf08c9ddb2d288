"""Formats numbers of reports as text."""

import math


def format_number(value: float, spec: str = ".4g") -> str:
    """Return a number in the given format, or 'not computable' if it is not finite.

    >>> format_number(0.123456), format_number(2, ".3g"), format_number(float("nan"))
    ('0.1235', '2', 'not computable')
    """
    return format(value, spec) if math.isfinite(value) else "not computable"


def format_ms(milliseconds: float) -> str:
    """Return a duration with three significant digits, never in exponential notation.

    >>> format_ms(0.70512), format_ms(12.34), format_ms(1212.7)
    ('0.705 ms', '12.3 ms', '1,213 ms')
    """
    return f"{milliseconds:{',.0f' if milliseconds >= 999.5 else '.3g'}} ms"
