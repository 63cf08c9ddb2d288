"""What an evaluation will read is opened before the training, or the refusal says what it lacks."""

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
from tests.sluice.evaluation.suites.suite_samples import NOW, named
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
    """A folder with artifacts and suites of its own, on a registry that others may share."""

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
    with Ledger.open(url, clock=Clock()) as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path, ledger: Ledger) -> Home:
    """Return the home that the registry is in, with version 1 in production and version 2 not."""
    home = Home(tmp_path / "one", ledger)
    promote_chain(ledger, home.store, 1)
    register_sample(ledger, home.store, salt=2, reference=ledger.version(MODEL, 1).candidate)
    return home


@pytest.fixture
def elsewhere(tmp_path: Path, home: Home) -> Home:
    return Home(tmp_path / "two", home.ledger)


def test_a_first_training_needs_nothing(tmp_path: Path, ledger: Ledger) -> None:
    assert Home(tmp_path / "one", ledger).open(guards=("hard",)) == ()


def test_production_the_approved_version_and_the_suites_are_opened(home: Home) -> None:
    home.library.add(named(3, 5), at=NOW)
    approved = home.ledger.version(MODEL, 2).candidate

    assert home.open(approved=approved, guards=("chosen", "hard")) == (
        f"{MODEL} version 1 (in production), 2 networks",
        f"{MODEL} version 2 (approved), 2 networks",
        "suite 'chosen' version 1",
    )


def test_a_version_of_another_home_is_named_with_the_registry_both_share(elsewhere: Home) -> None:
    weights = elsewhere.ledger.version(MODEL, 1).lineage.members[0].weights

    with pytest.raises(IntegrityError) as caught:
        elsewhere.open()

    said = caught.value
    assert f"{MODEL} version 1 (in production), but none of its 2 weights files" in said.what
    assert f"artifact {weights} (weights of seed 0 fold 0)" in said.what
    assert f"The registry {elsewhere.ledger.url} is shared" in said.cause
    assert f"into {elsewhere.store.root}" in said.fix
    assert "one SLUICE_HOME" in said.fix


def test_the_fix_of_the_error_solves_it(home: Home, elsewhere: Home) -> None:
    shutil.copytree(home.store.root, elsewhere.store.root)

    assert len(elsewhere.open()) == 1


def test_the_same_recipe_in_another_home_is_refused_too(elsewhere: Home) -> None:
    """Its bits may differ there: then it is another candidate, compared with that version."""
    with pytest.raises(IntegrityError, match="in production"):
        elsewhere.open(subject=RECIPE)


def test_missing_weights_do_not_block_the_training_that_reproduces_them(home: Home) -> None:
    shutil.rmtree(home.store.root)

    assert home.open(subject=RECIPE) == ()
    with pytest.raises(IntegrityError, match="is in this home, so its artifacts were deleted"):
        home.open(subject=OTHER)


def test_one_damaged_network_is_named(home: Home) -> None:
    member = home.ledger.version(MODEL, 1).lineage.members[1]
    home.store.path(member.weights).write_bytes(b"other")

    with pytest.raises(
        IntegrityError, match=r"version 1 \(in production\).*does not match its name"
    ):
        home.open()


def test_of_other_code_the_recorded_losses_are_read_as_well(tmp_path: Path, ledger: Ledger) -> None:
    home = Home(tmp_path / "one", ledger)
    table = io.BytesIO()
    pd.DataFrame({"seed": [0], "fold": [0], "row": ["0"], "loss": [1.0]}).to_parquet(table)

    def registered(salt: int, **artifacts: bytes) -> str:
        stored = {role: home.store.put(content) for role, content in artifacts.items()}
        lineage = sample_lineage(home.store, salt=salt).model_copy(update={"artifacts": stored})
        return ledger.register(MODEL, lineage, []).version.candidate

    other_code = OTHER | {"code": "1" * 64}

    assert home.open(approved=registered(1, losses=table.getvalue()), subject=other_code)
    with pytest.raises(IntegrityError, match=r"recorded losses, but artifact \w+ .* cannot be"):
        home.open(approved=registered(2, losses=b"no table"), subject=other_code)
    with pytest.raises(IntegrityError, match="recorded losses, but it has no recorded losses"):
        home.open(approved=registered(3), subject=other_code)
    assert home.open(approved=registered(3))


def test_an_approved_version_that_is_not_registered_is_refused(home: Home) -> None:
    with pytest.raises(GateBlocked, match=r"guards\.approved .* no candidate 99999999"):
        home.open(approved="9" * 64)


def test_an_approved_version_of_another_home_is_refused(home: Home) -> None:
    version = home.ledger.version(MODEL, 2)
    for digest in version.lineage.weights().values():
        home.store.path(digest).unlink()

    with pytest.raises(IntegrityError, match=r"version 2 \(approved\)"):
        home.open(approved=version.candidate)


def test_a_suite_with_a_guard_must_exist_and_be_intact(home: Home) -> None:
    with pytest.raises(GateBlocked, match=r"Suite 'chosen' has a guard .* only the hard suite"):
        home.open(guards=("chosen",))

    entry = home.library.add(named(3, 5), at=NOW)
    home.store.path(entry.artifact).write_bytes(b"{}")
    with pytest.raises(IntegrityError, match="does not match its name"):
        home.open()
