"""Finds the installed distribution of a top-level module, and its version."""

import functools
from dataclasses import dataclass
from pathlib import Path

_SITE = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Distribution:
    """One installed distribution."""

    name: str
    version: str


def distribution_of(folder: Path, module: str) -> Distribution | None:
    """Return the distribution that installed a module into a folder.

    The metadata beside the module are read, not ``importlib.metadata``: an editable install does
    not make the sources of a project an installed distribution.

    Args:
        folder: Folder that contains the module's file or its package.
        module: Top-level name, or the dotted name of a part of a namespace package.

    Returns:
        None if no metadata beside the module claim it. In a folder for installed packages the
        module then counts as a distribution of its own name and unknown version.
    """
    try:
        changed = folder.stat().st_mtime_ns  # an installer renames the folder with the version
    except OSError:
        return None
    owner = _owners(folder, changed).get(module.split(".")[0], ())
    for name, version, record in owner:
        path = module.replace(".", "/")
        if len(owner) == 1 or f"\n{path}/" in record or f"\n{path}." in record:
            return Distribution(name, version)
    return Distribution(module.split(".")[0], "unknown") if folder.name in _SITE else None


@functools.lru_cache(maxsize=64)
def _owners(
    folder: Path,
    changed: int,  # noqa: ARG001 - part of the cache key
) -> dict[str, list[tuple[str, str, str]]]:
    """Return name, version and RECORD text of the owners of each top-level module."""
    owners: dict[str, list[tuple[str, str, str]]] = {}
    patterns = ("*.dist-info", "*.egg-info") if folder.name in _SITE else ("*.dist-info",)
    for metadata in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        name, _, version = metadata.stem.partition("-")
        record = _text(metadata / "RECORD")
        listed = _text(metadata / "top_level.txt").split() or _top_levels(record) or [name]
        for top in listed:
            owners.setdefault(top, []).append((name, version, f"\n{record}"))
    # The RECORD is needed only for namespace packages with several owners; it can have a megabyte.
    return {
        top: found if len(found) > 1 else [(*found[0][:2], "")] for top, found in owners.items()
    }


def _top_levels(record: str) -> list[str]:
    tops: dict[str, None] = {}
    for line in record.splitlines():
        first, slash, _ = line.partition("/")
        if slash and first.isidentifier():
            tops[first] = None
        elif not slash and first.split(",")[0].endswith(".py"):
            tops[first.split(".py")[0]] = None
    return list(tops)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
