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
        The distribution whose metadata list the module. If no metadata list the module: in a
        site-packages folder, a distribution with the name of the module and an unknown version;
        in other folders, None.
    """
    try:
        # An install or upgrade adds or renames a metadata folder, which changes the folder's time.
        changed_ns = folder.stat().st_mtime_ns
    except OSError:
        return None
    owners = _owners(folder, changed_ns).get(module.split(".")[0], ())
    for name, version, record_text in owners:
        path = module.replace(".", "/")
        if len(owners) == 1 or f"\n{path}/" in record_text or f"\n{path}." in record_text:
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
        for top_level in top_levels:
            owners.setdefault(top_level, []).append((name, version, f"\n{record}"))
    # The RECORD text, which can be a megabyte long, is kept only if several distributions share a
    # namespace package.
    return {
        top_level: entries if len(entries) > 1 else [(*entries[0][:2], "")]
        for top_level, entries in owners.items()
    }


def _top_levels(record: str) -> list[str]:
    """Return the top-level modules and packages that a RECORD lists."""
    top_levels: dict[str, None] = {}
    for line in record.splitlines():
        folder_or_file, slash, _ = line.partition("/")
        if slash and folder_or_file.isidentifier():
            top_levels[folder_or_file] = None
        elif not slash and folder_or_file.split(",")[0].endswith(".py"):
            top_levels[folder_or_file.split(".py")[0]] = None
    return list(top_levels)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
