"""Which installed distribution a top-level module belongs to, and in which version."""

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

    The metadata beside the module are read, not those of ``importlib.metadata``: that a project is
    installed editable does not make its sources an installed distribution.

    Args:
        folder: What holds the module's file, or its package's folder.
        module: Top-level name, or the dotted name of a part of a namespace package.

    Returns:
        None where no metadata beside the module claim it. In a folder for installed packages the
        module is then a distribution of its own name and unknown version.
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
    changed: int,  # noqa: ARG001 - another state of the folder is read again
) -> dict[str, list[tuple[str, str, str]]]:
    """Return name, version and record of files by top-level module."""
    owners: dict[str, list[tuple[str, str, str]]] = {}
    patterns = ("*.dist-info", "*.egg-info") if folder.name in _SITE else ("*.dist-info",)
    for metadata in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        name, _, version = metadata.stem.partition("-")
        record = _text(metadata / "RECORD")
        listed = _text(metadata / "top_level.txt").split() or _top_levels(record) or [name]
        for top in listed:
            owners.setdefault(top, []).append((name, version, f"\n{record}"))
    # Who owns which part matters for namespace packages alone; a record can have a megabyte.
    return {
        top: those if len(those) > 1 else [(*those[0][:2], "")] for top, those in owners.items()
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
