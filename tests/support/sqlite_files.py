"""Direct access to the SQLite file of a registry."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def sqlite_file(path: Path | str) -> Iterator[sqlite3.Connection]:
    """Open a file; commit and close at the end. ``with connection`` alone would not close it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection
