"""Versions whose artifacts this home does not have: several homes may share one registry."""

from pathlib import Path

from sqlalchemy.engine import make_url

from sluice.base.artifacts import ArtifactStore
from sluice.registry.lineage import Lineage


def is_absent(lineage: Lineage, store: ArtifactStore) -> bool:
    """Return whether the store has none of a version's weights.

    The weights alone decide: tables and reports of two homes may be the same, byte for byte.
    """
    weights = lineage.weights().values()
    return bool(weights) and not any(store.has(digest) for digest in weights)


def is_own_registry(url: str, store: ArtifactStore) -> bool:
    """Return whether a registry is the embedded one of the home that a store belongs to."""
    parsed = make_url(url)
    folder = Path(str(parsed.database)).parent
    return parsed.get_backend_name() == "sqlite" and folder == store.root.parent


def explain_absence(url: str, store: ArtifactStore) -> tuple[str, str]:
    """Return why a home may lack the artifacts of a version, and what to do about it.

    Args:
        url: Of the registry, without its password.
        store: The artifacts of this home.
    """
    if is_own_registry(url, store):
        return (
            f"The registry {url} is in the same folder, so its artifacts were deleted, or only the "
            "registry was copied here.",
            f"Restore {store.root} from a backup, or copy it from where the registry came from.",
        )
    return (
        f"The registry {url} is shared, and the artifact folder of this home is not: another home "
        "registered them.",
        f"Copy the artifacts folder of that home into {store.root} (files are named by their "
        "digests, so nothing is overwritten), or let all machines use one SLUICE_HOME on shared "
        "storage.",
    )
