"""Content-addressed files, verified on every read (REG-3)."""

from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError, IntegrityError, StorageError


@pytest.fixture
def artifact_store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def list_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_content_is_stored_under_its_sha256(artifact_store: ArtifactStore) -> None:
    digest = artifact_store.put(b"abc")

    # the test vector of FIPS 180-2
    assert digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert artifact_store.get(digest) == b"abc"
    assert artifact_store.path(digest).name == digest


def test_equal_content_is_stored_once(artifact_store: ArtifactStore, tmp_path: Path) -> None:
    assert artifact_store.put(b"abc") == artifact_store.put(b"abc")
    assert len(list_files(tmp_path)) == 1


def test_missing_artifact_is_reported(artifact_store: ArtifactStore) -> None:
    with pytest.raises(IntegrityError, match=f"Artifact {'0' * 64} is required and missing"):
        artifact_store.get("0" * 64)


@pytest.mark.parametrize("content", [b"", b"abd", b"abc "])
def test_damaged_artifact_is_rejected_and_repaired_by_put(
    artifact_store: ArtifactStore, content: bytes
) -> None:
    digest = artifact_store.put(b"abc")
    artifact_store.path(digest).write_bytes(content)

    with pytest.raises(IntegrityError, match="does not match its name"):
        artifact_store.get(digest)

    artifact_store.put(b"abc")
    assert artifact_store.get(digest) == b"abc"


@pytest.mark.parametrize(
    "name", ["", "abc", "../../etc/passwd", "A" * 64, "a" * 65, "a" * 64 + "\n"]
)
def test_invalid_digest_is_rejected(artifact_store: ArtifactStore, name: str) -> None:
    with pytest.raises(ContractError, match="64 lower-case hexadecimal digits"):
        artifact_store.get(name)


def test_unreadable_artifact_raises_storage_error(artifact_store: ArtifactStore) -> None:
    digest = digest_bytes(b"abc")
    artifact_store.path(digest).mkdir(parents=True)

    with pytest.raises(StorageError, match="cannot be read"):
        artifact_store.get(digest)
    with pytest.raises(StorageError, match="Cannot write"):
        artifact_store.put(b"abc")


def test_store_in_a_file_instead_of_a_folder_raises_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="Cannot write"):
        ArtifactStore(tmp_path / "file").put(b"abc")
