"""Findings of ``verify`` after artifacts or the database were manipulated."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import save

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError
from sluice.registry.ledger import Ledger
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    artifact_path,
    poc_receipt,
    promote_chain,
    register_sample,
    sample_lineage,
)


class Intruder:
    """Runs SQL on the database; the triggers are dropped before and restored afterwards."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, statement: str, *values: object) -> None:
        connection = sqlite3.connect(self.path)
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        triggers = connection.execute(query).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        assert connection.execute(statement, values).rowcount > 0
        for _, definition in triggers:
            connection.execute(definition)
        connection.commit()
        connection.close()


@pytest.fixture
def intruder(tmp_path: Path) -> Intruder:
    return Intruder(tmp_path / "registry.db")


@pytest.fixture
def ledger(intruder: Intruder, store: ArtifactStore) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{intruder.path}", clock=Clock()) as opened:
        promote_chain(opened, store, 2)
        yield opened


def list_problems(ledger: Ledger, store: ArtifactStore) -> list[tuple[int | None, str]]:
    return [(f.version, f.problem) for f in ledger.verify(None, store=store)]


def test_consistent_registry_has_no_findings(ledger: Ledger, store: ArtifactStore) -> None:
    register_sample(ledger, store, salt=5)
    ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)

    assert list_problems(ledger, store) == []


def test_missing_and_changed_artifacts_are_reported(
    ledger: Ledger, store: ArtifactStore, tmp_path: Path
) -> None:
    members = ledger.version(MODEL, 1).lineage.members
    artifact_path(tmp_path / "artifacts", members[0].weights).unlink()
    artifact_path(tmp_path / "artifacts", members[1].event_log).write_bytes(b"")

    findings = ledger.verify(MODEL, store=store)

    assert [(f.version, f.problem) for f in findings] == [(1, "artifact"), (1, "artifact")]
    assert "weights of seed 0 fold 0" in findings[0].what
    assert "missing" in findings[0].what
    assert "event log of seed 1 fold 0" in findings[1].what
    assert "does not match its name" in findings[1].what


def test_artifacts_in_another_home_are_one_finding_with_its_cause(
    ledger: Ledger, tmp_path: Path
) -> None:
    """8 artifacts of two versions are missing; some artifacts are identical in both homes."""
    other_store = ArtifactStore(tmp_path / "two" / "artifacts")
    other_store.put(b"log 1 0")

    (finding,) = ledger.verify(None, store=other_store)

    assert (finding.model, finding.version, finding.problem) == (MODEL, None, "artifact")
    assert (
        f"{other_store.root} has no weights of {MODEL} versions 1, 2: 7 artifacts" in finding.what
    )
    assert f"The registry {ledger.url} is shared" in finding.what
    assert f"Copy the artifacts folder of that home into {other_store.root}" in finding.fix


def test_artifacts_in_another_home_do_not_hide_other_findings(
    ledger: Ledger, store: ArtifactStore
) -> None:
    """One version is in another home; a file of the other version is missing."""
    away, here = (ledger.version(MODEL, number).lineage for number in (1, 2))
    for digest in away.weights().values():
        store.path(digest).unlink()
    store.path(here.members[0].event_log).unlink()

    first, second = ledger.verify(MODEL, store=store)

    assert (first.version, "event log of seed 0 fold 0" in first.what) == (2, True)
    assert (second.version, f"no weights of {MODEL} version 1: 2 artifacts" in second.what) == (
        1,
        True,
    )
    assert "is in this home, so its artifacts were deleted" in second.what


@pytest.mark.parametrize("content", [b"\x80\x04K\x01.", b"", save({})], ids=["pickle", "", "none"])
def test_weights_that_are_not_safetensors_are_reported(
    ledger: Ledger, store: ArtifactStore, content: bytes
) -> None:
    """REG-3: correct digest, wrong file format."""
    lineage = sample_lineage(store, salt=8)
    member = lineage.members[0].model_copy(update={"weights": store.put(content)})
    changed = lineage.model_copy(update={"members": (member, *lineage.members[1:])})
    changed = changed.model_copy(update={"candidate": changed.compute_candidate()})
    ledger.register(MODEL, changed, [])

    (finding,) = ledger.verify(MODEL, store=store)

    assert (finding.version, finding.problem) == (3, "artifact")
    assert "safetensors file" in finding.what


def test_edited_receipt_is_reported(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    statement = "UPDATE sluice_receipts SET payload = replace(payload, '0.054', '0.154')"
    intruder.run(statement + " WHERE gate = 'promotion'")

    assert list_problems(ledger, store) == [(1, "receipt"), (2, "receipt"), *([(None, "log")] * 2)]


def test_version_with_an_edited_receipt_is_not_promoted(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    register_sample(ledger, store, salt=3, reference=ledger.version(MODEL, 2).candidate)
    intruder.run("UPDATE sluice_receipts SET payload = replace(payload, '0.054', '0.154')")

    with pytest.raises(IntegrityError, match="does not match its digest"):
        ledger.promote(MODEL, 3, expected=2, actor="a", reason="r", store=store)
    assert ledger.version(MODEL, 3).state == "dev"


def test_unreadable_receipt_is_reported(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    intruder.run("UPDATE sluice_receipts SET payload = '{}' WHERE gate = 'poc'")

    assert list_problems(ledger, store) == [(2, "receipt"), (None, "log")]


def test_swapped_weights_in_the_lineage_are_reported(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    """The other weights are intact and load, but no gate evaluated them as this version."""
    other_weights = ledger.version(MODEL, 1).lineage.members[0].weights
    own_weights = ledger.version(MODEL, 2).lineage.members[0].weights
    intruder.run(
        "UPDATE sluice_versions SET lineage = replace(lineage, ?, ?) WHERE number = 2",
        own_weights,
        other_weights,
    )

    assert list_problems(ledger, store) == [(2, "lineage"), (None, "log")]


def test_version_with_swapped_weights_is_not_a_rollback_target(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    own_weights = ledger.version(MODEL, 1).lineage.members[0].weights
    other_weights = ledger.version(MODEL, 2).lineage.members[0].weights
    intruder.run(
        "UPDATE sluice_versions SET lineage = replace(lineage, ?, ?) WHERE number = 1",
        own_weights,
        other_weights,
    )

    with pytest.raises(
        IntegrityError, match=r"differs from what the gates evaluated: .* weights have the digest"
    ):
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)


def test_version_with_swapped_weights_is_not_promoted(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    register_sample(ledger, store, salt=3, reference=ledger.version(MODEL, 2).candidate)
    own_weights = ledger.version(MODEL, 3).lineage.members[0].weights
    other_weights = ledger.version(MODEL, 1).lineage.members[0].weights
    intruder.run(
        "UPDATE sluice_versions SET lineage = replace(lineage, ?, ?) WHERE number = 3",
        own_weights,
        other_weights,
    )

    with pytest.raises(
        IntegrityError, match=r"differs from what the gates evaluated: .* weights have the digest"
    ):
        ledger.promote(MODEL, 3, expected=2, actor="a", reason="r", store=store)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("synthetic:SineWorkload", "echo:Echo", "its settings have the digest"),
        (
            '"workload_settings":{}',
            '"workload_settings":{"rows":9}',
            "its settings have the digest",
        ),
        ('"mse":0.643', '"mse":0.001', r"sluice_versions \[.*, 3\] does not match line \d+"),
    ],
)
def test_version_with_edited_lineage_is_not_promoted(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder, old: str, new: str, message: str
) -> None:
    """Weights and digests are correct, but settings or metrics were edited."""
    register_sample(ledger, store, salt=3, reference=ledger.version(MODEL, 2).candidate)
    intruder.run(
        "UPDATE sluice_versions SET lineage = replace(lineage, ?, ?) WHERE number = 3", old, new
    )

    with pytest.raises(IntegrityError, match=message):
        ledger.promote(MODEL, 3, expected=2, actor="a", reason="r", store=store)


def test_version_with_edited_settings_is_not_a_rollback_target(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    intruder.run("UPDATE sluice_versions SET lineage = replace(lineage, 'SineW', 'W')")

    assert (1, "lineage") in list_problems(ledger, store)
    with pytest.raises(IntegrityError, match="its settings have the digest"):
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)


def test_emptied_lineage_is_reported(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    intruder.run("UPDATE sluice_versions SET lineage = '{}' WHERE number = 1")

    assert list_problems(ledger, store) == [(1, "lineage"), (None, "log")]
    with pytest.raises(IntegrityError, match="cannot be read"):
        ledger.versions(MODEL)


def test_production_version_with_damaged_lineage_can_be_rolled_back(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    intruder.run("UPDATE sluice_versions SET lineage = '{}' WHERE number = 2")
    expected = ledger.production_number(MODEL)
    assert expected == 2

    done = ledger.rollback(MODEL, expected=expected, actor="a", reason="r", store=store)

    assert done.version == 1


def test_incomplete_lineage_is_reported(ledger: Ledger, store: ArtifactStore) -> None:
    lineage = sample_lineage(store, salt=3).model_copy(update={"metrics": {}})
    ledger.register(MODEL, lineage, [])

    (finding,) = ledger.verify(MODEL, store=store)

    assert finding.what == f"{MODEL} version 3 lacks metrics."


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sluice_pointers SET version = 1",
        "UPDATE sluice_pointers SET version = NULL",
        "UPDATE sluice_pointers SET revision = revision + 1",
    ],
)
def test_moved_pointer_is_reported(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder, statement: str
) -> None:
    intruder.run(statement)

    assert [problem for _, problem in list_problems(ledger, store)] == ["pointer"]


def test_rollback_rejects_a_moved_pointer(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    intruder.run("UPDATE sluice_pointers SET version = 1")

    with pytest.raises(
        IntegrityError, match="pointer is at version 1, but the history ends with version 2"
    ):
        ledger.rollback(MODEL, expected=1, actor="a", reason="r", store=store)


@pytest.mark.parametrize(
    ("statement", "problems"),
    [
        ("UPDATE sluice_history SET at = 'yesterday' WHERE id = 1", ["history", "log"]),
        ("UPDATE sluice_history SET at = substr(at, 1, 19) WHERE id = 1", ["history", "log"]),
        ("UPDATE sluice_history SET action = 'weird' WHERE id = 1", ["history", "log"]),
        ("UPDATE sluice_history SET reason = x'ff00' WHERE id = 1", ["history", "log"]),
        ("UPDATE sluice_history SET from_version = 'a' WHERE id = 1", ["history", "log"]),
        ("UPDATE sluice_receipts SET recorded_at = x'ff' WHERE gate = 'poc'", ["log"]),
        (
            "UPDATE sluice_receipts SET payload = replace(payload, '\"unit\"', '\"tables\"') "
            "WHERE gate = 'promotion'",
            ["receipt", "receipt", "log", "log"],
        ),
        ("UPDATE sluice_log SET previous = x'ff' WHERE number = 1", ["log", "log"]),
        ("UPDATE sluice_log_head SET lines = 'x'", ["log"]),
    ],
)
def test_unreadable_row_is_reported_and_does_not_hide_other_findings(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder, statement: str, problems: list[str]
) -> None:
    """SQLite stores any value in any column."""
    store.path(ledger.version(MODEL, 2).lineage.members[0].weights).unlink()
    intruder.run(statement)

    assert [problem for _, problem in list_problems(ledger, store)] == ["artifact", *problems]


@pytest.mark.parametrize(
    ("statement", "problems"),
    [
        ("UPDATE sluice_versions SET registered_at = 'x' WHERE number = 1", {"lineage", "log"}),
        # The receipts of both promotions are about the removed candidate.
        (
            "UPDATE sluice_versions SET candidate = x'ff' WHERE number = 1",
            {"lineage", "history", "log"},
        ),
        (
            "UPDATE sluice_versions SET number = 'x' WHERE number = 1",
            {"lineage", "history", "log"},
        ),
        ("UPDATE sluice_pointers SET version = 'x'", {"lineage", "pointer"}),
    ],
)
def test_unreadable_version_or_pointer_is_reported(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder, statement: str, problems: set[str]
) -> None:
    intruder.run(statement)

    assert {problem for _, problem in list_problems(ledger, store)} == problems


def test_unreadable_head_blocks_writes(ledger: Ledger, intruder: Intruder) -> None:
    intruder.run("UPDATE sluice_log_head SET lines = 'x'")

    with pytest.raises(IntegrityError, match=r"head of the registry's log cannot be read"):
        ledger.record_receipt(poc_receipt())


def test_unreadable_history_blocks_moves(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    intruder.run("UPDATE sluice_history SET at = substr(at, 1, 19)")

    with pytest.raises(IntegrityError, match=r"must have a date and a time zone, got '2025-03-14T"):
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)


@pytest.mark.parametrize(
    ("statement", "problems"),
    [
        ("DELETE FROM sluice_history WHERE revision = 1", ["history", "pointer"]),
        ("DELETE FROM sluice_history WHERE revision = 2", ["pointer"]),
        # It does not continue the previous move, and its receipt has another reference.
        ("UPDATE sluice_history SET from_version = 9 WHERE revision = 2", ["history", "history"]),
        ("UPDATE sluice_history SET revision = 7 WHERE revision = 2", ["history"]),
        ("UPDATE sluice_history SET receipt = NULL WHERE revision = 2", ["history"]),
        ("UPDATE sluice_history SET action = 'rollback' WHERE revision = 2", ["history"]),
    ],
)
def test_edited_history_is_reported(
    ledger: Ledger,
    store: ArtifactStore,
    intruder: Intruder,
    statement: str,
    problems: list[str],
) -> None:
    intruder.run(statement)

    assert [problem for _, problem in list_problems(ledger, store)] == [*problems, "log"]


def test_promotion_with_the_receipt_of_another_gate_is_reported(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    intruder.run(
        "UPDATE sluice_history SET receipt = "
        "(SELECT digest FROM sluice_receipts WHERE gate = 'poc') WHERE revision = 2"
    )

    (finding, _) = ledger.verify(None, store=store)
    assert finding.problem == "history"
    assert finding.what.endswith(", which is a receipt of the poc gate.")


def test_findings_about_a_removed_first_move_name_versions_and_move_numbers(
    ledger: Ledger, store: ArtifactStore, intruder: Intruder
) -> None:
    intruder.run("DELETE FROM sluice_history WHERE revision = 1")

    what = " ".join(finding.what for finding in ledger.verify(None, store=store))
    assert "it starts from version 1, not no version; it has move number 2, not 1." in what
    assert (
        "is at version 2 after 2 moves, but the history ends with version 2 after 1 move." in what
    )
