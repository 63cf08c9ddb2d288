"""REG-3: content-addressed files, verified on every read."""

from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError, IntegrityError, StorageError


@pytest.fixture
def artifact_store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_content_comes_back_under_its_sha256(artifact_store: ArtifactStore) -> None:
    digest = artifact_store.put(b"abc")

    # the test vector of FIPS 180-2
    assert digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert artifact_store.get(digest) == b"abc"
    assert artifact_store.path(digest).name == digest


def test_same_content_is_one_file(artifact_store: ArtifactStore, tmp_path: Path) -> None:
    assert artifact_store.put(b"abc") == artifact_store.put(b"abc")
    assert len(files(tmp_path)) == 1


def test_missing_artifact(artifact_store: ArtifactStore) -> None:
    with pytest.raises(IntegrityError, match=f"Artifact {'0' * 64} is required and missing"):
        artifact_store.get("0" * 64)


@pytest.mark.parametrize("damaged", [b"", b"abd", b"abc "])
def test_changed_artifact_is_refused_and_repaired_by_put(
    artifact_store: ArtifactStore, damaged: bytes
) -> None:
    digest = artifact_store.put(b"abc")
    artifact_store.path(digest).write_bytes(damaged)

    with pytest.raises(IntegrityError, match="does not match its name"):
        artifact_store.get(digest)

    artifact_store.put(b"abc")
    assert artifact_store.get(digest) == b"abc"


@pytest.mark.parametrize(
    "name", ["", "abc", "../../etc/passwd", "A" * 64, "a" * 65, "a" * 64 + "\n"]
)
def test_invalid_digest_never_becomes_a_path(artifact_store: ArtifactStore, name: str) -> None:
    with pytest.raises(ContractError, match="64 lower-case hexadecimal digits"):
        artifact_store.get(name)


def test_unreadable_artifact(artifact_store: ArtifactStore) -> None:
    digest = digest_bytes(b"abc")
    artifact_store.path(digest).mkdir(parents=True)

    with pytest.raises(StorageError, match="cannot be read"):
        artifact_store.get(digest)
    with pytest.raises(StorageError, match="Cannot write"):
        artifact_store.put(b"abc")


def test_store_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="Cannot write"):
        ArtifactStore(tmp_path / "file").put(b"abc")
