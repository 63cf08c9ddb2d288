"""Formats a count with its noun in the singular or plural."""


def pluralize(number: int, noun: str) -> str:
    """Return the number and the noun, which gets a plural 's' unless the number is 1.

    >>> pluralize(1, "row"), pluralize(2, "row"), pluralize(1024, "row")
    ('1 row', '2 rows', '1,024 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
