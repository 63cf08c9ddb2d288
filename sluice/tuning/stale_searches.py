"""Detects unfinished searches that a changed request replaces."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.base.dict_diff import format_differences
from sluice.base.files import write_atomic
from sluice.tuning.study_folder import is_unfinished

_NAME = "asked.json"


def record_request(folder: Path, request: Mapping[str, Any]) -> tuple[str, ...]:
    """Store the request of the search in ``folder`` beside its journal, the first time.

    The folder of a search is named by everything that determines its decisions, so another request
    never resumes from its trials. The differences are returned so that a setting that was changed
    by mistake can be restored.

    Args:
        folder: Folder of the search; sibling folders contain other searches.
        request: The request by name, as plain JSON; 'pipeline' identifies the pipeline.

    Returns:
        Differences from the newest unfinished search of the same pipeline; empty if this search was
        already started, or no search is unfinished.

    Raises:
        StorageError: The folder cannot be written.
    """
    if (folder / _NAME).exists():
        return ()
    plain = json.loads(json.dumps(request))
    differing: tuple[str, ...] = ()
    for other in sorted(folder.parent.glob(f"*/{_NAME}"), key=lambda path: -path.stat().st_mtime):
        written = json.loads(other.read_bytes())
        if written.get("pipeline") == plain.get("pipeline") and is_unfinished(other.parent):
            differing = tuple(format_differences(written, plain))
            break
    write_atomic(folder / _NAME, json.dumps(plain, indent=1).encode())
    return differing
