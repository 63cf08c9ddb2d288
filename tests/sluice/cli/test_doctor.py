"""``sluice doctor`` on a home without write access or artifacts, and plural forms of counts."""

from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.base.pluralize import pluralize
from sluice.cli.doctor import DoctorSettings, examine
from sluice.registry.ledger import Ledger
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain

PROC = Path("/proc/none")


@pytest.mark.slow
@pytest.mark.skipif(not PROC.parent.is_dir(), reason="this system has no /proc")
def test_unwritable_state_folder_is_reported(tmp_path: Path) -> None:
    home = Home(root=PROC, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")
    found = {e.name: e for e in examine(home, tmp_path, DoctorSettings())}

    folder, disk = found["state folder"], found["free disk"]
    assert (folder.healthy, disk.healthy) == (False, False)
    assert "point SLUICE_HOME at one" in folder.fix
    assert "GiB of free disk space are required at /proc" in disk.seen


@pytest.mark.slow
def test_home_without_the_artifacts_of_a_shared_registry_is_reported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    with Ledger.open(url, clock=Clock()) as ledger:
        promote_chain(ledger, ArtifactStore(tmp_path / "one" / "artifacts"), 2)
    home = Home(root=tmp_path / "two", registry_url=url)

    found = {e.name: e for e in examine(home, tmp_path, DoctorSettings())}["registry"]

    assert not found.healthy
    assert f"{home.artifacts} has no weights of {MODEL} versions 1, 2" in found.seen
    assert "shared.db is shared, but the artifact folder of this home is not" in found.seen
    assert f"Copy the artifacts folder of that home into {home.artifacts}" in found.fix


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 rows"), (1, "1 row"), (1024, "1,024 rows")]
)
def test_nouns_agree_with_their_number(number: int, expected: str) -> None:
    assert pluralize(number, "row") == expected


def test_supported_python_needs_no_fix(tmp_path: Path) -> None:
    home = Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")

    python = next(iter(examine(home, tmp_path, DoctorSettings())))

    assert (python.name, python.healthy, python.fix) == ("python", True, "")
