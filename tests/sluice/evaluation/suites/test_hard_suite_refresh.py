"""The hard suite follows what is in production, and nothing else (DATA-5)."""

from pathlib import Path

import numpy as np
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.evaluation.suites.hard_suite_refresh import refresh_hard_suite
from sluice.evaluation.suites.library import SuiteLibrary
from tests.sluice.evaluation.suites.suite_samples import NOW, flat, frame, losses, named


@pytest.fixture
def library(tmp_path: Path) -> SuiteLibrary:
    return SuiteLibrary(tmp_path / "suites", ArtifactStore(tmp_path / "artifacts"))


def renew(library: SuiteLibrary, subject: str, *, worst: int = 0, loss: float = 9.0):
    loss_SN = flat(4)
    loss_SN[:, worst] = loss
    table = losses(loss_SN, subject)
    return refresh_hard_suite(library, table, frame(), ("x",), share=0.05, at=NOW)


def test_another_model_in_production_makes_the_next_version_and_new_losses_do_not(library):
    first = renew(library, "one", worst=5)

    assert first.version == 1
    assert len(first.suite.rows) == 4
    assert renew(library, "one", worst=6) == first
    assert renew(library, "two", worst=6).version == 2
    assert library.load("hard", 1) == first


def test_a_diverged_model_creates_no_suite_and_keeps_the_existing_one(library):
    assert renew(library, "one", loss=np.nan) is None
    first = renew(library, "one")
    assert renew(library, "two", loss=np.inf) == first


def test_a_user_suite_named_hard_is_not_changed(library):
    library.add(named(50, name="hard"), at=NOW)

    assert renew(library, "one").suite == named(50, name="hard")
