"""Formats the range of several values as text."""


def format_range(low: object, high: object, spec: str = "") -> str:
    """Return 'low to high' with both numbers in the given format.

    The result is one number if both numbers are equal in this format.

    >>> format_range(3, 5), format_range(3, 3), format_range(0.5, 2000, ",.4g")
    ('3 to 5', '3', '0.5 to 2,000')
    """
    low_text, high_text = format(low, spec), format(high, spec)
    return low_text if low_text == high_text else f"{low_text} to {high_text}"
