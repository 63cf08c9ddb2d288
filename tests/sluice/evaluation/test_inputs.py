"""The inputs of an evaluation are opened before the training; missing ones are reported."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked, IntegrityError
from sluice.evaluation.inputs import open_evaluation_inputs
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.registry.ledger import Ledger
from tests.sluice.evaluation.suites.suite_samples import NOW, make_rows_suite
from tests.sluice.registry.ledger_samples import (
    CODE,
    CONFIG,
    DATA,
    MODEL,
    Clock,
    promote_chain,
    register_sample,
    sample_lineage,
)

RECIPE = {"data": DATA, "config": CONFIG, "code": CODE}
OTHER = RECIPE | {"config": "0" * 64}


class Home:
    """A home with its own artifacts and suites and a registry that may be shared."""

    def __init__(self, root: Path, ledger: Ledger) -> None:
        self.ledger = ledger
        self.store = ArtifactStore(root / "artifacts")
        self.library = SuiteLibrary(root / "suites", self.store)

    def open(
        self,
        *,
        approved: str | None = None,
        guards: tuple[str, ...] = (),
        subject: dict[str, str] = OTHER,
    ) -> tuple[str, ...]:
        return open_evaluation_inputs(
            self.ledger,
            MODEL,
            self.library,
            self.store,
            approved=approved,
            guarded_suites=guards,
            subject=subject,
            seeds=(0, 1),
        )


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    url = f"sqlite:///{tmp_path / 'one' / 'registry.db'}"
    with Ledger.open(url, clock=Clock()) as ledger:
        yield ledger


@pytest.fixture
def home(tmp_path: Path, ledger: Ledger) -> Home:
    """Return the home of the registry; version 1 is in production, version 2 is registered."""
    home = Home(tmp_path / "one", ledger)
    promote_chain(ledger, home.store, 1)
    register_sample(ledger, home.store, salt=2, reference=ledger.version(MODEL, 1).candidate)
    return home


@pytest.fixture
def other_home(tmp_path: Path, home: Home) -> Home:
    return Home(tmp_path / "two", home.ledger)


def test_a_first_training_needs_no_inputs(tmp_path: Path, ledger: Ledger) -> None:
    assert Home(tmp_path / "one", ledger).open(guards=("hard",)) == ()


def test_production_approved_version_and_suites_are_opened(home: Home) -> None:
    home.library.add(make_rows_suite(3, 5), at=NOW)
    approved = home.ledger.version(MODEL, 2).candidate

    assert home.open(approved=approved, guards=("chosen", "hard")) == (
        f"{MODEL} version 1 (in production), 2 networks",
        f"{MODEL} version 2 (approved), 2 networks",
        "suite 'chosen' version 1",
    )


def test_weights_in_another_home_are_reported_with_the_shared_registry(other_home: Home) -> None:
    weights = other_home.ledger.version(MODEL, 1).lineage.members[0].weights

    with pytest.raises(IntegrityError) as raised:
        other_home.open()

    error = raised.value
    assert f"{MODEL} version 1 (in production), but none of its 2 weights files" in error.what
    assert f"artifact {weights} (weights of seed 0 fold 0)" in error.what
    assert f"The registry {other_home.ledger.url} is shared" in error.cause
    assert f"into {other_home.store.root}" in error.fix
    assert "one SLUICE_HOME" in error.fix


def test_copying_the_artifacts_resolves_the_error(home: Home, other_home: Home) -> None:
    shutil.copytree(home.store.root, other_home.store.root)

    assert len(other_home.open()) == 1


def test_the_same_recipe_in_another_home_is_rejected(other_home: Home) -> None:
    """Its bits may differ there; then it is another candidate."""
    with pytest.raises(IntegrityError, match="in production"):
        other_home.open(subject=RECIPE)


def test_missing_weights_do_not_block_a_training_of_the_same_recipe(home: Home) -> None:
    shutil.rmtree(home.store.root)

    assert home.open(subject=RECIPE) == ()
    with pytest.raises(IntegrityError, match="is in this home, so its artifacts were deleted"):
        home.open(subject=OTHER)


def test_a_damaged_network_is_reported(home: Home) -> None:
    member = home.ledger.version(MODEL, 1).lineage.members[1]
    home.store.path(member.weights).write_bytes(b"other")

    with pytest.raises(
        IntegrityError, match=r"version 1 \(in production\).*does not match its name"
    ):
        home.open()


def test_recorded_losses_are_required_if_the_code_differs(tmp_path: Path, ledger: Ledger) -> None:
    home = Home(tmp_path / "one", ledger)
    table = io.BytesIO()
    pd.DataFrame({"seed": [0], "fold": [0], "row": ["0"], "loss": [1.0]}).to_parquet(table)

    def register(salt: int, **artifacts: bytes) -> str:
        stored = {role: home.store.put(content) for role, content in artifacts.items()}
        lineage = sample_lineage(home.store, salt=salt).model_copy(update={"artifacts": stored})
        return ledger.register(MODEL, lineage, []).version.candidate

    other_code = OTHER | {"code": "1" * 64}

    assert home.open(approved=register(1, losses=table.getvalue()), subject=other_code)
    with pytest.raises(IntegrityError, match=r"recorded losses, but artifact \w+ .* cannot be"):
        home.open(approved=register(2, losses=b"no table"), subject=other_code)
    with pytest.raises(IntegrityError, match="recorded losses, but it has no recorded losses"):
        home.open(approved=register(3), subject=other_code)
    assert home.open(approved=register(3))


def test_an_unregistered_approved_version_is_rejected(home: Home) -> None:
    with pytest.raises(GateBlocked, match=r"guards\.approved .* no candidate 99999999"):
        home.open(approved="9" * 64)


def test_an_approved_version_without_local_weights_is_rejected(home: Home) -> None:
    version = home.ledger.version(MODEL, 2)
    for digest in version.lineage.weights().values():
        home.store.path(digest).unlink()

    with pytest.raises(IntegrityError, match=r"version 2 \(approved\)"):
        home.open(approved=version.candidate)


def test_a_suite_with_a_guard_must_exist_and_be_intact(home: Home) -> None:
    with pytest.raises(GateBlocked, match=r"Suite 'chosen' has a guard .* only the hard suite"):
        home.open(guards=("chosen",))

    entry = home.library.add(make_rows_suite(3, 5), at=NOW)
    home.store.path(entry.artifact).write_bytes(b"{}")
    with pytest.raises(IntegrityError, match="does not match its name"):
        home.open()
