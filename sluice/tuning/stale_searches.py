"""Detects unfinished searches that will not be resumed because the request was changed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.base.dict_diff import format_differences
from sluice.base.files import write_atomic
from sluice.tuning.study_folder import is_unfinished

_REQUEST_FILE = "asked.json"
"""Name of the file with the request of a search, in the folder of the search."""


def record_request(folder: Path, request: Mapping[str, Any]) -> tuple[str, ...]:
    """Store the request of a new search in its folder; return changes since an unfinished search.

    The name of a search's folder depends on everything that determines the decisions of the search.
    Therefore a search with another request never resumes an unfinished search. The differences are
    returned, so that a user can restore a setting that was changed by mistake.

    Args:
        folder: Folder of the search; sibling folders contain other searches.
        request: Requested settings by name, as plain JSON; 'pipeline' identifies the pipeline.

    Returns:
        Differences from the newest unfinished search of the same pipeline. Empty if this search was
        already started, or if there is no unfinished search.

    Raises:
        StorageError: The folder cannot be written.
    """
    if (folder / _REQUEST_FILE).exists():
        return ()
    current_request = json.loads(json.dumps(request))
    differences: tuple[str, ...] = ()
    for other_file in sorted(
        folder.parent.glob(f"*/{_REQUEST_FILE}"), key=lambda path: -path.stat().st_mtime
    ):
        earlier_request = json.loads(other_file.read_bytes())
        is_same_pipeline = earlier_request.get("pipeline") == current_request.get("pipeline")
        if is_same_pipeline and is_unfinished(other_file.parent):
            differences = tuple(format_differences(earlier_request, current_request))
            break
    write_atomic(folder / _REQUEST_FILE, json.dumps(current_request, indent=1).encode())
    return differences
