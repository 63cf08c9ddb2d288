"""Versions of a suite are immutable, and a damaged one raises an error (DATA-5)."""

import json
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, IntegrityError
from sluice.evaluation.suites.library import SuiteLibrary
from tests.sluice.evaluation.suites.suite_samples import NOW, make_rows_suite


@pytest.fixture
def library(tmp_path: Path) -> SuiteLibrary:
    return SuiteLibrary(tmp_path / "suites", ArtifactStore(tmp_path / "artifacts"))


def test_a_stored_suite_is_loaded_unchanged(library):
    entry = library.add(make_rows_suite(3, 5), at=NOW)
    loaded = library.load("chosen")

    assert loaded.suite == make_rows_suite(3, 5)
    assert (loaded.version, loaded.added_at) == (1, NOW)
    assert (entry.num_rows, entry.kind, entry.digest) == (2, "query", loaded.suite.digest)
    assert library.newest() == (loaded,)


def test_storing_the_same_suite_again_has_no_effect(library, tmp_path):
    first = library.add(make_rows_suite(3), at=NOW)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}

    assert library.add(make_rows_suite(3), at=NOW + timedelta(days=1)) == first
    assert library.revise(make_rows_suite(3), at=NOW + timedelta(days=1)) == first
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_adding_other_rows_is_rejected_and_revising_creates_the_next_version(library):
    library.add(make_rows_suite(3), at=NOW)

    with pytest.raises(ContractError, match=r"Suite 'chosen' .* version 1, 1 row"):
        library.add(make_rows_suite(3, 4), at=NOW)

    assert library.revise(make_rows_suite(3, 4), at=NOW).version == 2
    assert library.load("chosen").suite == make_rows_suite(3, 4)
    assert library.load("chosen", 1).suite == make_rows_suite(3)
    # The rows of version 1 again.
    assert library.revise(make_rows_suite(3), at=NOW).version == 3


def test_the_digest_includes_the_reasons():
    one, other = make_rows_suite(3), make_rows_suite(3)
    rows = (other.rows[0].model_copy(update={"reason": "another"}),)

    assert other.model_copy(update={"rows": rows}).digest != one.digest


def test_the_newest_version_of_each_suite_is_listed_by_name(library):
    for name in ("b", "a"):
        library.add(make_rows_suite(1, name=name), at=NOW)
    library.revise(make_rows_suite(2, name="a"), at=NOW)

    assert library.names() == ("a", "b")
    assert [(version.suite.name, version.version) for version in library.newest()] == [
        ("a", 2),
        ("b", 1),
    ]


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("chose", None, "Suite 'chose' does not exist. Did you mean 'chosen'"),
        ("chosen", 2, "'chosen' version 2 does not exist. Known: version 1"),
        ("../suites", None, "does not exist"),
    ],
)
def test_the_error_for_an_unknown_suite_lists_the_known_ones(library, name, version, message):
    library.add(make_rows_suite(3), at=NOW)

    with pytest.raises(ContractError, match=message):
        library.load(name, version)


def test_of_concurrent_additions_of_one_name_only_one_succeeds(library):
    added, rejected = [], []

    def add(row: int) -> None:
        try:
            added.append(library.add(make_rows_suite(row), at=NOW))
        except ContractError as error:
            rejected.append(error)

    threads = [threading.Thread(target=add, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(added), len(rejected)) == (1, 7)
    assert library.entries("chosen") == tuple(added)


def test_concurrent_revisions_get_distinct_version_numbers(library):
    threads = [
        threading.Thread(target=library.revise, args=(make_rows_suite(row),), kwargs={"at": NOW})
        for row in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    entries = library.entries("chosen")
    assert [entry.version for entry in entries] == list(range(1, 9))
    assert len({entry.digest for entry in entries}) == 8


def overwrite_rows(tmp_path: Path) -> None:
    entry = json.loads(next(tmp_path.rglob("000001.json")).read_text())
    ArtifactStore(tmp_path / "artifacts").path(entry["artifact"]).write_text("{}")


def refer_to_another_suite(tmp_path: Path) -> None:
    path = next(tmp_path.rglob("000001.json"))
    other = ArtifactStore(tmp_path / "artifacts").put(make_rows_suite(9).model_dump_json().encode())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"artifact": other}))


def refer_to_invalid_rows(tmp_path: Path) -> None:
    path = next(tmp_path.rglob("000001.json"))
    other = ArtifactStore(tmp_path / "artifacts").put(b"{}")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"artifact": other}))


def rename_entry(tmp_path: Path) -> None:
    path = next(tmp_path.rglob("000001.json"))
    path.rename(path.with_name("000002.json"))


def truncate_entry(tmp_path: Path) -> None:
    next(tmp_path.rglob("000001.json")).write_text('{"name":')


@pytest.mark.parametrize(
    "damage",
    [overwrite_rows, refer_to_another_suite, refer_to_invalid_rows, rename_entry, truncate_entry],
)
def test_a_damaged_suite_raises_an_error(library, tmp_path, damage):
    library.add(make_rows_suite(3), at=NOW)
    damage(tmp_path)

    with pytest.raises(IntegrityError):
        library.newest()
