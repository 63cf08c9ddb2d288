"""A suite's version never changes, and a damaged one is never run in silence (DATA-5)."""

import json
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, IntegrityError
from sluice.evaluation.suites.library import SuiteLibrary
from tests.sluice.evaluation.suites.suite_samples import NOW, named


@pytest.fixture
def library(tmp_path: Path) -> SuiteLibrary:
    return SuiteLibrary(tmp_path / "suites", ArtifactStore(tmp_path / "artifacts"))


def test_a_stored_suite_is_loaded_unchanged(library):
    entry = library.add(named(3, 5), at=NOW)
    filed = library.load("chosen")

    assert filed.suite == named(3, 5)
    assert (filed.version, filed.added_at) == (1, NOW)
    assert (entry.num_rows, entry.kind, entry.digest) == (2, "query", filed.suite.digest)
    assert library.newest() == (filed,)


def test_storing_the_same_suite_again_has_no_effect(library, tmp_path):
    first = library.add(named(3), at=NOW)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}

    assert library.add(named(3), at=NOW + timedelta(days=1)) == first
    assert library.revise(named(3), at=NOW + timedelta(days=1)) == first
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_other_rows_under_the_same_name_are_rejected_and_a_revision_is_the_next_version(library):
    library.add(named(3), at=NOW)

    with pytest.raises(ContractError, match=r"Suite 'chosen' .* version 1, 1 row"):
        library.add(named(3, 4), at=NOW)

    assert library.revise(named(3, 4), at=NOW).version == 2
    assert library.load("chosen").suite == named(3, 4)
    assert library.load("chosen", 1).suite == named(3)
    assert library.revise(named(3), at=NOW).version == 3  # what was, comes again


def test_another_reason_is_another_suite():
    one, other = named(3), named(3)
    rows = (other.rows[0].model_copy(update={"reason": "another"}),)

    assert other.model_copy(update={"rows": rows}).digest != one.digest


def test_suites_of_several_names_are_found_by_name(library):
    for name in ("b", "a"):
        library.add(named(1, name=name), at=NOW)
    library.revise(named(2, name="a"), at=NOW)

    assert library.names() == ("a", "b")
    assert [(f.suite.name, f.version) for f in library.newest()] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("chose", None, "Suite 'chose' does not exist. Did you mean 'chosen'"),
        ("chosen", 2, "'chosen' version 2 does not exist. Known: version 1"),
        ("../suites", None, "does not exist"),
    ],
)
def test_the_error_for_an_unknown_suite_lists_the_known_ones(library, name, version, message):
    library.add(named(3), at=NOW)

    with pytest.raises(ContractError, match=message):
        library.load(name, version)


def test_of_concurrent_additions_of_one_name_only_one_succeeds(library):
    won, told = [], []

    def add(row: int) -> None:
        try:
            won.append(library.add(named(row), at=NOW))
        except ContractError as error:
            told.append(error)

    threads = [threading.Thread(target=add, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(won), len(told)) == (1, 7)
    assert library.entries("chosen") == tuple(won)


def test_concurrent_revisions_get_distinct_version_numbers(library):
    threads = [
        threading.Thread(target=library.revise, args=(named(row),), kwargs={"at": NOW})
        for row in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    entries = library.entries("chosen")
    assert [entry.version for entry in entries] == list(range(1, 9))
    assert len({entry.digest for entry in entries}) == 8


def damage_rows(tmp_path: Path) -> None:
    entry = json.loads(next(tmp_path.rglob("000001.json")).read_text())
    ArtifactStore(tmp_path / "artifacts").path(entry["artifact"]).write_text("{}")


def name_other_rows(tmp_path: Path) -> None:
    path = next(tmp_path.rglob("000001.json"))
    other = ArtifactStore(tmp_path / "artifacts").put(named(9).model_dump_json().encode())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"artifact": other}))


def name_no_suite(tmp_path: Path) -> None:
    path = next(tmp_path.rglob("000001.json"))
    other = ArtifactStore(tmp_path / "artifacts").put(b"{}")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"artifact": other}))


def renumber(tmp_path: Path) -> None:
    path = next(tmp_path.rglob("000001.json"))
    path.rename(path.with_name("000002.json"))


def tear(tmp_path: Path) -> None:
    next(tmp_path.rglob("000001.json")).write_text('{"name":')


@pytest.mark.parametrize("harm", [damage_rows, name_other_rows, name_no_suite, renumber, tear])
def test_a_damaged_suite_is_reported_and_not_skipped(library, tmp_path, harm):
    library.add(named(3), at=NOW)
    harm(tmp_path)

    with pytest.raises(IntegrityError):
        library.newest()
