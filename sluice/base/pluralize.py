"""A number of things, in words that fit the number."""


def counted(number: int, noun: str) -> str:
    """Return the number with its noun, in the plural unless it is one.

    >>> counted(1, "row"), counted(2, "row"), counted(1024, "row")
    ('1 row', '2 rows', '1,024 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
