"""REG-1, REG-3: a version file round-trips, or is rejected."""

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError, GateBlocked, IntegrityError, SluiceError, StorageError
from sluice.registry import append_only
from sluice.registry.code_paths import CodeAcceptance
from sluice.registry.ledger import Ledger
from sluice.registry.signing import SigningKey
from sluice.registry.tables import own_lineages
from sluice.registry.transfer import export_version, import_version
from tests.sluice.registry.ledger_samples import (
    MODEL,
    SETTINGS,
    Clock,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    sample_lineage,
)
from tests.sluice.registry.one_database import ON_BOTH
from tests.sluice.registry.one_database import url as url

KEY, OTHER_KEY = SigningKey(b"k" * 32), SigningKey(b"o" * 32)
Parts = dict[str, bytes]


@pytest.fixture
def away(tmp_path: Path) -> Iterator[tuple[Ledger, ArtifactStore]]:
    """Another registry with another store."""
    with Ledger.open(f"sqlite:///{tmp_path / 'away.db'}", clock=Clock()) as opened:
        yield opened, ArtifactStore(tmp_path / "away")


@pytest.fixture
def file(ledger: Ledger, store: ArtifactStore, tmp_path: Path) -> Path:
    promote_chain(ledger, store, 2)
    target = tmp_path / "v2.sluice"
    export_version(ledger, MODEL, 2, store=store, target=target, key=KEY, private_key=None)
    return target


def bring(away: tuple[Ledger, ArtifactStore], file: Path, key: SigningKey | None = None) -> str:
    done = import_version(
        away[0],
        file,
        store=away[1],
        actor="eve",
        key=key,
        trusted_keys=None,
        local_paths_of=lambda _: [str(SETTINGS["workload"])],
        trusted_paths=(),
    )
    return f"{done.version.number} {done.version.state} {done.created}"


@ON_BOTH
def test_imported_version_is_dev_with_its_receipts(
    ledger: Ledger, away: tuple[Ledger, ArtifactStore], file: Path
) -> None:
    there, store = away

    assert bring(away, file, KEY) == "1 dev True"

    assert there.version(MODEL, 1).lineage == ledger.version(MODEL, 2).lineage
    assert [r.digest for r in there.imported_receipts(MODEL, 1)] == [
        linked.receipt.digest for linked in ledger.receipts(MODEL, 2)
    ]
    assert there.receipts(MODEL, 1) == []
    line, accepted = there.history(MODEL)
    assert (line.action, line.actor) == ("import", "eve")
    assert (accepted.action, accepted.reason) == ("accept", SETTINGS["workload"])
    assert "imported from v2.sluice: version 2 of its registry" in line.reason
    assert digest_bytes(file.read_bytes()) in line.reason
    assert there.verify(None, store=store) == []
    assert bring(away, file) == "1 dev False"
    assert len(there.history(MODEL)) == 2


def test_imported_receipts_do_not_allow_a_promotion(
    away: tuple[Ledger, ArtifactStore], ledger: Ledger, store: ArtifactStore, tmp_path: Path
) -> None:
    """The receipts have the required verdict but were not issued here."""
    promote_chain(ledger, store, 1)
    target = tmp_path / "v1"
    export_version(ledger, MODEL, 1, store=store, target=target, key=None, private_key=None)
    bring(away, target)
    there, their_store = away
    with pytest.raises(GateBlocked, match="receipt of the poc gate is required and missing"):
        there.promote(MODEL, 1, expected=None, actor="a", reason="r", store=their_store)

    lineage = there.version(MODEL, 1).lineage
    there.register(MODEL, lineage, [poc_receipt(), promotion_receipt(lineage.candidate)])
    done = there.promote(MODEL, 1, expected=None, actor="a", reason="r", store=their_store)

    assert done.moved


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"mse": 0.643', b'"mse": 0.143'),
        (b'"sortino": 1.02', b'"sortino": NaN'),
        (b'"trained_through": "2015-06-30"', b'"trained_through": "2014-06-30"'),
        (b'"val_loss": 0.64', b'"val_loss": 0.34'),
        (b'"mse": 0.643', b'"rmse": 0.643'),
    ],
)
def test_local_training_replaces_different_imported_results(
    away: tuple[Ledger, ArtifactStore], file: Path, old: bytes, new: bytes
) -> None:
    """The candidate is the same: local training must not confirm the imported results."""
    there, store = away
    honest = sample_lineage(store, salt=2)

    def forge(parts: Parts) -> None:
        assert old in parts["version.json"]
        parts["version.json"] = parts["version.json"].replace(old, new)

    rewrite(file, with_manifest(forge))
    bring(away, file)
    assert there.version(MODEL, 1).lineage.model_dump_json() != honest.model_dump_json()

    done = there.register(MODEL, honest, [poc_receipt(), promotion_receipt(honest.candidate)])

    assert (done.version.number, done.created) == (1, False)
    assert there.version(MODEL, 1).lineage == honest
    line = next(e for e in there.history(MODEL) if e.action == "register")
    assert "the imported file had other results: " in line.reason
    assert there.verify(None, store=store) == []
    assert there.promote(MODEL, 1, expected=None, actor="a", reason="r", store=store).moved


def test_drift_of_an_imported_version_uses_the_local_reference(
    away: tuple[Ledger, ArtifactStore], file: Path
) -> None:
    """No digest checked by a gate covers the reference in the file."""
    there, store = away
    honest = sample_lineage(store, salt=2)
    reference = {"drift features": store.put(b"of the rows it learned from")}
    honest = honest.model_copy(update={"artifacts": reference})

    def forge(parts: Parts) -> None:
        doctored = b"of rows that look like today's"
        parts[f"artifacts/{digest_bytes(doctored)}"] = doctored
        version = json.loads(parts["version.json"])
        version["lineage"]["artifacts"] = {"drift features": digest_bytes(doctored)}
        parts["version.json"] = json.dumps(version).encode()

    rewrite(file, with_manifest(forge))
    bring(away, file)

    there.register(MODEL, honest, [poc_receipt()])
    there.register(MODEL, honest.model_copy(update={"training_seconds": 9.0}), [poc_receipt()])

    assert there.version(MODEL, 1).lineage == honest
    assert [e.action for e in there.history(MODEL)] == ["import", "accept", "register"]


def test_import_and_the_same_training_are_one_version(
    away: tuple[Ledger, ArtifactStore], file: Path
) -> None:
    """Times, machine and the last bits of a metric may differ."""
    there, store = away
    bring(away, file)
    lineage = sample_lineage(store, salt=2)
    metrics = lineage.metrics | {"mse": lineage.metrics["mse"] * (1 + 1e-9)}
    lineage = lineage.model_copy(update={"metrics": metrics, "training_seconds": 99.0})

    registered = there.register(MODEL, lineage, [poc_receipt()])

    assert (registered.version.number, registered.created) == (1, False)
    assert (
        there.history(MODEL)[-1].reason
        == "trained here; the local results replace the imported ones"
    )


def test_manipulated_own_lineage_is_not_promoted(
    away: tuple[Ledger, ArtifactStore], file: Path
) -> None:
    there, store = away
    bring(away, file)
    lineage = sample_lineage(store, salt=2)
    there.register(MODEL, lineage, [poc_receipt(), promotion_receipt(lineage.candidate)])
    better = lineage.model_copy(update={"metrics": {"mse": 0.1}}).model_dump_json()
    with there._database.write() as connection:
        connection.execute(sa.text("DROP TRIGGER sluice_own_lineages_no_update"))
        connection.execute(sa.update(own_lineages).values(lineage=better))
        append_only.restore_triggers(connection)

    with pytest.raises(IntegrityError, match=r"sluice_own_lineages .* does not match line"):
        there.promote(MODEL, 1, expected=None, actor="a", reason="r", store=store)

    assert ["sluice_own_lineages" in f.what for f in there.verify(None, store=store)] == [True]


def test_removed_own_lineage_blocks_the_promotion(
    away: tuple[Ledger, ArtifactStore], file: Path
) -> None:
    there, store = away
    bring(away, file)
    lineage = sample_lineage(store, salt=2)
    there.register(MODEL, lineage, [poc_receipt(), promotion_receipt(lineage.candidate)])
    with there._database.write() as connection:
        connection.execute(sa.text("DROP TRIGGER sluice_own_lineages_no_delete"))
        connection.execute(sa.delete(own_lineages))

    with pytest.raises(IntegrityError, match=r"sluice_own_lineages .* the row is missing"):
        there.promote(MODEL, 1, expected=None, actor="a", reason="r", store=store)


def test_same_version_gives_the_same_bytes(
    ledger: Ledger, store: ArtifactStore, file: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    digest = export_version(ledger, MODEL, 2, store=store, target=again, key=KEY, private_key=None)

    assert again.read_bytes() == file.read_bytes()
    assert digest == digest_bytes(file.read_bytes())


def rewrite(file: Path, change: Callable[[Parts], None], compression: int = 0) -> None:
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    change(parts)
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def with_manifest(change: Callable[[Parts], None]) -> Callable[[Parts], None]:
    """Let the modifier of a part also rewrite the manifest."""

    def changed(parts: Parts) -> None:
        change(parts)
        manifest = json.loads(parts["manifest.json"])
        manifest["parts"] = {
            n: digest_bytes(c) for n, c in parts.items() if n not in ("manifest.json", SIGNATURE)
        }
        parts["manifest.json"] = json.dumps(manifest).encode()

    return changed


SIGNATURE = "signature.txt"


def weights(parts: Parts) -> str:
    return next(n for n, c in parts.items() if n.startswith("artifacts/") and b"x_mean" in c)


def flip(parts: Parts) -> None:
    parts[weights(parts)] = parts[weights(parts)][:-1] + b"\xff"


def drop(parts: Parts) -> None:
    del parts[weights(parts)]


def traverse(parts: Parts) -> None:
    parts["artifacts/../../../evil"] = b"evil"


def newer(parts: Parts) -> None:
    parts["manifest.json"] = parts["manifest.json"].replace(
        b'"format_number": 1', b'"format_number": 2'
    )


def better_metrics(parts: Parts) -> None:
    parts["version.json"] = parts["version.json"].replace(b"0.643", b"0.143")


def other_data(parts: Parts) -> None:
    data = json.loads(parts["version.json"])["lineage"]["data"]
    parts["version.json"] = parts["version.json"].replace(
        f'"data": "{data}"'.encode(), f'"data": "{"e" * 64}"'.encode()
    )


def other_workload(parts: Parts) -> None:
    """Changes the serving settings without affecting a digest named by a receipt."""
    parts["version.json"] = parts["version.json"].replace(b":SineWorkload", b":OtherWorkload")


def pickle_for_weights(parts: Parts) -> None:
    """A consistent file with a candidate whose weights are a pickle."""
    name = weights(parts)
    del parts[name]
    content = b"\x80\x04K\x01."
    parts[f"artifacts/{digest_bytes(content)}"] = content
    old, new = name.removeprefix("artifacts/"), digest_bytes(content)
    parts["version.json"] = parts["version.json"].replace(old.encode(), new.encode())


def unreadable_name(parts: Parts) -> None:
    """No digest covers the name."""
    old, new = f'"model": "{MODEL}"', '"model": "sp500\\n"'
    parts["version.json"] = parts["version.json"].replace(old.encode(), new.encode())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (flip, "does not match the manifest"),
        (drop, "is missing"),
        (traverse, "'artifacts/../../../evil' is unexpected"),
        (newer, "has format 2, but this version of Sluice supports format 1"),
        (better_metrics, "content of 'version.json' does not match"),
        (with_manifest(flip), "does not match its name"),
        (with_manifest(drop), "is missing"),
        (with_manifest(traverse), "not part of the version"),
        (with_manifest(other_data), "was changed since its export: its candidate digest is"),
        (with_manifest(other_workload), "its settings have the digest"),
        (with_manifest(pickle_for_weights), "and is a Python pickle"),
        (with_manifest(unreadable_name), "a model name must have 1 to 200 lower-case"),
        (lambda parts: parts.pop("manifest.json"), "has no manifest.json"),
        (lambda parts: parts.update({"manifest.json": b"[]"}), "manifest cannot be read"),
        (with_manifest(lambda parts: parts.update({"version.json": b"{}"})), "description cannot"),
    ],
)
def test_tampered_file_is_refused(
    away: tuple[Ledger, ArtifactStore],
    file: Path,
    tmp_path: Path,
    change: Callable[[Parts], None],
    said: str,
) -> None:
    rewrite(file, change)

    with pytest.raises(SluiceError, match=said):
        bring(away, file)

    assert away[0].models() == []
    assert not (tmp_path / "away").exists()
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("key", [OTHER_KEY, KEY])
def test_consistent_forgery_needs_the_key(
    away: tuple[Ledger, ArtifactStore], file: Path, key: SigningKey
) -> None:
    """Metrics and manifest rewritten together: only the signature reveals it."""
    rewrite(file, with_manifest(better_metrics))

    with pytest.raises(IntegrityError, match="not signed with the given key"):
        bring(away, file, key)


def test_compressed_duplicate_and_foreign_files_are_rejected(
    away: tuple[Ledger, ArtifactStore], file: Path, tmp_path: Path
) -> None:
    rewrite(file, lambda _: None, zipfile.ZIP_DEFLATED)
    with pytest.raises(IntegrityError, match="a part is compressed"):
        bring(away, file)
    rewrite(file, lambda _: None)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("version.json", b"{}")
    with pytest.raises(IntegrityError, match="it has a duplicate part"):
        bring(away, file)
    file.write_bytes(b"no zip")
    with pytest.raises(IntegrityError, match="it is damaged"):
        bring(away, file)
    with pytest.raises(StorageError, match="cannot be read"):
        bring(away, tmp_path / "nowhere")


def test_missing_artifact_is_not_exported(
    ledger: Ledger, store: ArtifactStore, tmp_path: Path
) -> None:
    lineage = sample_lineage(store)
    ledger.register(MODEL, lineage, [])
    store.path(lineage.members[0].weights).unlink()

    with pytest.raises(IntegrityError, match="required and missing"):
        export_version(
            ledger, MODEL, 1, store=store, target=tmp_path / "x", key=None, private_key=None
        )
    assert not (tmp_path / "x").exists()


def test_format_of_the_lineage_is_stable(
    away: tuple[Ledger, ArtifactStore], store: ArtifactStore
) -> None:
    changed = sample_lineage(store).model_copy(update={"data": "e" * 64})
    code = CodeAcceptance(accepted_paths=(), trusted_paths=())

    with pytest.raises(ContractError, match="data, config, code and weights have the digest"):
        away[0].import_version(changed, [], actor="a", reason="r", code=code)
