"""Finds the installed distribution that a module belongs to, and its version."""

import functools
from dataclasses import dataclass
from pathlib import Path

_SITE_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Names of folders into which distributions are installed."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """One installed distribution."""

    name: str
    version: str


def distribution_of(folder: Path, module: str) -> Distribution | None:
    """Return the distribution that installed a module into a folder.

    Only the metadata in the same folder are read. ``importlib.metadata`` would also find a project
    that is installed in editable mode, but its sources are the user's own code.

    Args:
        folder: Folder that contains the module's file or its package.
        module: Name of a top-level module, or dotted name of a module in a namespace package.

    Returns:
        The distribution whose metadata list the module. If no metadata list it: in a site-packages
        folder, a distribution with the name of the module and an unknown version; elsewhere None.
    """
    try:
        # An install or upgrade adds or renames a metadata folder, which changes this time.
        changed_ns = folder.stat().st_mtime_ns
    except OSError:
        return None
    owners = _owners(folder, changed_ns).get(module.split(".")[0], ())
    for name, version, record in owners:
        path = module.replace(".", "/")
        if len(owners) == 1 or f"\n{path}/" in record or f"\n{path}." in record:
            return Distribution(name, version)
    return Distribution(module.split(".")[0], "unknown") if folder.name in _SITE_FOLDERS else None


@functools.lru_cache(maxsize=64)
def _owners(
    folder: Path,
    changed_ns: int,  # noqa: ARG001 - part of the cache key
) -> dict[str, list[tuple[str, str, str]]]:
    """Return the distributions of each top-level module, as (name, version, RECORD text)."""
    owners: dict[str, list[tuple[str, str, str]]] = {}
    patterns = ("*.dist-info", "*.egg-info") if folder.name in _SITE_FOLDERS else ("*.dist-info",)
    for metadata in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        name, _, version = metadata.stem.partition("-")
        record = _read_text(metadata / "RECORD")
        top_levels = _read_text(metadata / "top_level.txt").split() or _top_levels(record) or [name]
        for top in top_levels:
            owners.setdefault(top, []).append((name, version, f"\n{record}"))
    # The RECORD text can be a megabyte long. It is kept only if several distributions share a
    # namespace package.
    return {
        top: entries if len(entries) > 1 else [(*entries[0][:2], "")]
        for top, entries in owners.items()
    }


def _top_levels(record: str) -> list[str]:
    """Return the top-level modules and packages that a RECORD lists."""
    tops: dict[str, None] = {}
    for line in record.splitlines():
        first, slash, _ = line.partition("/")
        if slash and first.isidentifier():
            tops[first] = None
        elif not slash and first.split(",")[0].endswith(".py"):
            tops[first.split(".py")[0]] = None
    return list(tops)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
