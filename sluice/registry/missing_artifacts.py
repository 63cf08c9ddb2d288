"""Detects versions whose artifacts are missing in this home folder of Sluice.

Several homes may share a registry, but each home has a separate artifact folder.
"""

from pathlib import Path

from sqlalchemy.engine import make_url

from sluice.base.artifacts import ArtifactStore
from sluice.registry.lineage import Lineage


def lacks_all_weights(lineage: Lineage, store: ArtifactStore) -> bool:
    """Return whether the store contains no weights of a version.

    Only the weights are checked. Tables and reports may be identical for two versions, so they may
    exist in this home although the version was registered by another home.
    """
    weights = lineage.weights().values()
    return bool(weights) and not any(store.has(digest) for digest in weights)


def is_registry_of_home(url: str, store: ArtifactStore) -> bool:
    """Return whether a registry is the SQLite database in the home folder of the store."""
    parsed_url = make_url(url)
    folder = Path(str(parsed_url.database)).parent
    return parsed_url.get_backend_name() == "sqlite" and folder == store.root.parent


def explain_missing_artifacts(url: str, store: ArtifactStore) -> tuple[str, str]:
    """Return the likely cause and the fix for missing artifacts of a version.

    Args:
        url: URL of the registry, without its password.
        store: Artifacts of this home.
    """
    if is_registry_of_home(url, store):
        return (
            f"The registry {url} is in this home, so its artifacts were deleted, or only the "
            "registry was copied here.",
            f"Restore {store.root} from a backup, or copy it from the registry's original home.",
        )
    return (
        f"The registry {url} is shared, but the artifact folder of this home is not: the versions "
        "were registered by another home.",
        f"Copy the artifacts folder of that home into {store.root}, or use one SLUICE_HOME on "
        "shared storage for all machines. Copying overwrites nothing, because files are named by "
        "their digests.",
    )
