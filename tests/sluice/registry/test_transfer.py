"""Export and import of version files: round trip, forged and damaged files (REG-1, REG-3)."""

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
from sluice.registry.tables import local_lineages
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
    """The importing registry and its artifact store."""
    with Ledger.open(f"sqlite:///{tmp_path / 'away.db'}", clock=Clock()) as opened:
        yield opened, ArtifactStore(tmp_path / "away")


@pytest.fixture
def file(ledger: Ledger, store: ArtifactStore, tmp_path: Path) -> Path:
    promote_chain(ledger, store, 2)
    target = tmp_path / "v2.sluice"
    export_version(ledger, MODEL, 2, store=store, target=target, key=KEY, private_key=None)
    return target


def import_file(
    away: tuple[Ledger, ArtifactStore], file: Path, key: SigningKey | None = None
) -> str:
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
def test_imported_version_has_state_dev_and_its_receipts_as_imported(
    ledger: Ledger, away: tuple[Ledger, ArtifactStore], file: Path
) -> None:
    away_ledger, store = away

    assert import_file(away, file, KEY) == "1 dev True"

    assert away_ledger.version(MODEL, 1).lineage == ledger.version(MODEL, 2).lineage
    assert [r.digest for r in away_ledger.imported_receipts(MODEL, 1)] == [
        linked.receipt.digest for linked in ledger.receipts(MODEL, 2)
    ]
    assert away_ledger.receipts(MODEL, 1) == []
    line, accepted = away_ledger.history(MODEL)
    assert (line.action, line.actor) == ("import", "eve")
    assert (accepted.action, accepted.reason) == ("accept", SETTINGS["workload"])
    assert "imported from v2.sluice: version 2 of its registry" in line.reason
    assert digest_bytes(file.read_bytes()) in line.reason
    assert away_ledger.verify(None, store=store) == []
    assert import_file(away, file) == "1 dev False"
    assert len(away_ledger.history(MODEL)) == 2


def test_imported_receipts_do_not_allow_a_promotion(
    away: tuple[Ledger, ArtifactStore], ledger: Ledger, store: ArtifactStore, tmp_path: Path
) -> None:
    """The receipts have the required verdicts, but another registry issued them."""
    promote_chain(ledger, store, 1)
    target = tmp_path / "v1"
    export_version(ledger, MODEL, 1, store=store, target=target, key=None, private_key=None)
    import_file(away, target)
    away_ledger, away_store = away
    with pytest.raises(GateBlocked, match="receipt of the poc gate is required and missing"):
        away_ledger.promote(MODEL, 1, expected=None, actor="a", reason="r", store=away_store)

    lineage = away_ledger.version(MODEL, 1).lineage
    away_ledger.register(MODEL, lineage, [poc_receipt(), promotion_receipt(lineage.candidate)])
    done = away_ledger.promote(MODEL, 1, expected=None, actor="a", reason="r", store=away_store)

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
    """The candidate digest is equal; local training must not confirm the imported results."""
    away_ledger, store = away
    local_lineage = sample_lineage(store, salt=2)

    def forge(parts: Parts) -> None:
        assert old in parts["version.json"]
        parts["version.json"] = parts["version.json"].replace(old, new)

    rewrite_file(file, with_updated_manifest(forge))
    import_file(away, file)
    assert (
        away_ledger.version(MODEL, 1).lineage.model_dump_json() != local_lineage.model_dump_json()
    )

    done = away_ledger.register(
        MODEL, local_lineage, [poc_receipt(), promotion_receipt(local_lineage.candidate)]
    )

    assert (done.version.number, done.created) == (1, False)
    assert away_ledger.version(MODEL, 1).lineage == local_lineage
    line = next(e for e in away_ledger.history(MODEL) if e.action == "register")
    assert "the imported file had other results: " in line.reason
    assert away_ledger.verify(None, store=store) == []
    assert away_ledger.promote(MODEL, 1, expected=None, actor="a", reason="r", store=store).moved


def test_local_training_replaces_an_imported_drift_reference(
    away: tuple[Ledger, ArtifactStore], file: Path
) -> None:
    """No digest that a gate checks covers the drift reference in the file."""
    away_ledger, store = away
    local_lineage = sample_lineage(store, salt=2)
    reference = {"drift features": store.put(b"of the rows it learned from")}
    local_lineage = local_lineage.model_copy(update={"artifacts": reference})

    def forge(parts: Parts) -> None:
        forged_reference = b"of rows that look like today's"
        parts[f"artifacts/{digest_bytes(forged_reference)}"] = forged_reference
        version = json.loads(parts["version.json"])
        version["lineage"]["artifacts"] = {"drift features": digest_bytes(forged_reference)}
        parts["version.json"] = json.dumps(version).encode()

    rewrite_file(file, with_updated_manifest(forge))
    import_file(away, file)

    away_ledger.register(MODEL, local_lineage, [poc_receipt()])
    away_ledger.register(
        MODEL, local_lineage.model_copy(update={"training_seconds": 9.0}), [poc_receipt()]
    )

    assert away_ledger.version(MODEL, 1).lineage == local_lineage
    assert [e.action for e in away_ledger.history(MODEL)] == ["import", "accept", "register"]


def test_import_and_equal_local_training_are_one_version(
    away: tuple[Ledger, ArtifactStore], file: Path
) -> None:
    """Training times and the last bits of a metric may differ."""
    away_ledger, store = away
    import_file(away, file)
    lineage = sample_lineage(store, salt=2)
    metrics = lineage.metrics | {"mse": lineage.metrics["mse"] * (1 + 1e-9)}
    lineage = lineage.model_copy(update={"metrics": metrics, "training_seconds": 99.0})

    registered = away_ledger.register(MODEL, lineage, [poc_receipt()])

    assert (registered.version.number, registered.created) == (1, False)
    assert (
        away_ledger.history(MODEL)[-1].reason
        == "trained here; the local results replace the imported ones"
    )


def test_edited_own_lineage_is_not_promoted(away: tuple[Ledger, ArtifactStore], file: Path) -> None:
    away_ledger, store = away
    import_file(away, file)
    lineage = sample_lineage(store, salt=2)
    away_ledger.register(MODEL, lineage, [poc_receipt(), promotion_receipt(lineage.candidate)])
    better = lineage.model_copy(update={"metrics": {"mse": 0.1}}).model_dump_json()
    with away_ledger._database.write() as connection:
        connection.execute(sa.text("DROP TRIGGER sluice_own_lineages_no_update"))
        connection.execute(sa.update(local_lineages).values(lineage=better))
        append_only.restore_triggers(connection)

    with pytest.raises(IntegrityError, match=r"sluice_own_lineages .* does not match line"):
        away_ledger.promote(MODEL, 1, expected=None, actor="a", reason="r", store=store)

    assert ["sluice_own_lineages" in f.what for f in away_ledger.verify(None, store=store)] == [
        True
    ]


def test_removed_own_lineage_blocks_the_promotion(
    away: tuple[Ledger, ArtifactStore], file: Path
) -> None:
    away_ledger, store = away
    import_file(away, file)
    lineage = sample_lineage(store, salt=2)
    away_ledger.register(MODEL, lineage, [poc_receipt(), promotion_receipt(lineage.candidate)])
    with away_ledger._database.write() as connection:
        connection.execute(sa.text("DROP TRIGGER sluice_own_lineages_no_delete"))
        connection.execute(sa.delete(local_lineages))

    with pytest.raises(IntegrityError, match=r"sluice_own_lineages .* the row is missing"):
        away_ledger.promote(MODEL, 1, expected=None, actor="a", reason="r", store=store)


def test_repeated_export_gives_identical_bytes(
    ledger: Ledger, store: ArtifactStore, file: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    digest = export_version(ledger, MODEL, 2, store=store, target=again, key=KEY, private_key=None)

    assert again.read_bytes() == file.read_bytes()
    assert digest == digest_bytes(file.read_bytes())


def rewrite_file(file: Path, change: Callable[[Parts], None], compression: int = 0) -> None:
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    change(parts)
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def with_updated_manifest(change: Callable[[Parts], None]) -> Callable[[Parts], None]:
    """Return a change of parts that also updates the digests in the manifest."""

    def change_and_update_manifest(parts: Parts) -> None:
        change(parts)
        manifest = json.loads(parts["manifest.json"])
        manifest["parts"] = {
            n: digest_bytes(c) for n, c in parts.items() if n not in ("manifest.json", SIGNATURE)
        }
        parts["manifest.json"] = json.dumps(manifest).encode()

    return change_and_update_manifest


SIGNATURE = "signature.txt"


def weights_part(parts: Parts) -> str:
    return next(n for n, c in parts.items() if n.startswith("artifacts/") and b"x_mean" in c)


def flip_weights(parts: Parts) -> None:
    parts[weights_part(parts)] = parts[weights_part(parts)][:-1] + b"\xff"


def drop_weights(parts: Parts) -> None:
    del parts[weights_part(parts)]


def add_path_traversal(parts: Parts) -> None:
    parts["artifacts/../../../evil"] = b"evil"


def raise_format_number(parts: Parts) -> None:
    parts["manifest.json"] = parts["manifest.json"].replace(
        b'"format_number": 1', b'"format_number": 2'
    )


def change_metrics(parts: Parts) -> None:
    parts["version.json"] = parts["version.json"].replace(b"0.643", b"0.143")


def change_data(parts: Parts) -> None:
    data = json.loads(parts["version.json"])["lineage"]["data"]
    parts["version.json"] = parts["version.json"].replace(
        f'"data": "{data}"'.encode(), f'"data": "{"e" * 64}"'.encode()
    )


def change_workload(parts: Parts) -> None:
    """Change a setting for serving that no digest in a receipt covers."""
    parts["version.json"] = parts["version.json"].replace(b":SineWorkload", b":OtherWorkload")


def replace_weights_by_pickle(parts: Parts) -> None:
    """Replace the weights of a member by a pickle and update their digest in the description."""
    name = weights_part(parts)
    del parts[name]
    content = b"\x80\x04K\x01."
    parts[f"artifacts/{digest_bytes(content)}"] = content
    old, new = name.removeprefix("artifacts/"), digest_bytes(content)
    parts["version.json"] = parts["version.json"].replace(old.encode(), new.encode())


def change_model_name(parts: Parts) -> None:
    """Add a line break to the model name, which no digest covers."""
    old, new = f'"model": "{MODEL}"', '"model": "sp500\\n"'
    parts["version.json"] = parts["version.json"].replace(old.encode(), new.encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip_weights, "does not match the manifest"),
        (drop_weights, "is missing"),
        (add_path_traversal, "'artifacts/../../../evil' is unexpected"),
        (raise_format_number, "has format 2, but this version of Sluice supports format 1"),
        (change_metrics, "content of 'version.json' does not match"),
        (with_updated_manifest(flip_weights), "does not match its name"),
        (with_updated_manifest(drop_weights), "is missing"),
        (with_updated_manifest(add_path_traversal), "not part of the version"),
        (
            with_updated_manifest(change_data),
            "was changed since its export: its candidate digest is",
        ),
        (with_updated_manifest(change_workload), "its settings have the digest"),
        (with_updated_manifest(replace_weights_by_pickle), "but is a Python pickle"),
        (with_updated_manifest(change_model_name), "a model name must have 1 to 200 lower-case"),
        (lambda parts: parts.pop("manifest.json"), "has no manifest.json"),
        (lambda parts: parts.update({"manifest.json": b"[]"}), "manifest cannot be read"),
        (
            with_updated_manifest(lambda parts: parts.update({"version.json": b"{}"})),
            "version.json cannot be read",
        ),
    ],
)
def test_tampered_file_is_rejected_and_nothing_is_stored(
    away: tuple[Ledger, ArtifactStore],
    file: Path,
    tmp_path: Path,
    change: Callable[[Parts], None],
    message: str,
) -> None:
    rewrite_file(file, change)

    with pytest.raises(SluiceError, match=message):
        import_file(away, file)

    assert away[0].models() == []
    assert not (tmp_path / "away").exists()
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("key", [OTHER_KEY, KEY])
def test_forged_file_with_consistent_digests_is_rejected_with_a_key(
    away: tuple[Ledger, ArtifactStore], file: Path, key: SigningKey
) -> None:
    """The manifest matches the changed metrics; only the signature reveals the change."""
    rewrite_file(file, with_updated_manifest(change_metrics))

    with pytest.raises(IntegrityError, match="not signed with the given key"):
        import_file(away, file, key)


def test_compressed_duplicate_damaged_and_missing_files_are_rejected(
    away: tuple[Ledger, ArtifactStore], file: Path, tmp_path: Path
) -> None:
    rewrite_file(file, lambda _: None, zipfile.ZIP_DEFLATED)
    with pytest.raises(IntegrityError, match="a part is compressed"):
        import_file(away, file)
    rewrite_file(file, lambda _: None)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("version.json", b"{}")
    with pytest.raises(IntegrityError, match="it has a duplicate part"):
        import_file(away, file)
    file.write_bytes(b"no zip")
    with pytest.raises(IntegrityError, match="it is damaged"):
        import_file(away, file)
    with pytest.raises(StorageError, match="cannot be read"):
        import_file(away, tmp_path / "nowhere")


def test_version_with_a_missing_artifact_is_not_exported(
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


def test_import_rejects_lineage_that_does_not_match_its_candidate(
    away: tuple[Ledger, ArtifactStore], store: ArtifactStore
) -> None:
    changed = sample_lineage(store).model_copy(update={"data": "e" * 64})
    code = CodeAcceptance(accepted_paths=(), trusted_paths=())

    with pytest.raises(ContractError, match="data, config, code and weights have the digest"):
        away[0].import_version(changed, [], actor="a", reason="r", code=code)
