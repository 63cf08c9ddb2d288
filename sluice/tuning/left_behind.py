"""Searches that were stopped and left behind because something that was asked changed since."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.base.dict_diff import differences
from sluice.base.files import write_atomic

_NAME = "asked.json"


def note_asked(folder: Path, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Write beside the journal what the search in ``folder`` is asked for, the first time.

    A search's folder is named by all that determines its decisions, so that another question
    never goes on from its trials. Whoever changed something by mistake can put it back.

    Args:
        folder: Of the search; the folders beside it hold others.
        asked: By name, as plain JSON; 'pipeline' says whose search it is.

    Returns:
        What was asked differently by the newest unfinished search of the same pipeline; nothing
        when this one was begun already, or none is unfinished.

    Raises:
        StorageError: The folder cannot be written.
    """
    if (folder / _NAME).exists():
        return ()
    plain = json.loads(json.dumps(asked))
    found: tuple[str, ...] = ()
    for other in sorted(folder.parent.glob(f"*/{_NAME}"), key=lambda path: -path.stat().st_mtime):
        written = json.loads(other.read_bytes())
        if written.get("pipeline") == plain.get("pipeline") and _is_unfinished(other.parent):
            found = tuple(differences(written, plain))
            break
    write_atomic(folder / _NAME, json.dumps(plain, indent=1).encode())
    return found


def _is_unfinished(folder: Path) -> bool:
    """Checkpoints are removed with the last trial."""
    trials = folder / "trials"
    return trials.is_dir() and any(trials.iterdir())
