"""The hard suite gets a new version only if another model is in production (DATA-5)."""

from pathlib import Path

import numpy as np
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.evaluation.suites.hard_suite_refresh import refresh_hard_suite
from sluice.evaluation.suites.library import SuiteLibrary
from tests.sluice.evaluation.suites.suite_samples import (
    NOW,
    make_flat_losses,
    make_frame,
    make_losses,
    make_rows_suite,
)


@pytest.fixture
def library(tmp_path: Path) -> SuiteLibrary:
    return SuiteLibrary(tmp_path / "suites", ArtifactStore(tmp_path / "artifacts"))


def refresh(library: SuiteLibrary, subject: str, *, worst_row: int = 0, loss: float = 9.0):
    loss_SN = make_flat_losses(4)
    loss_SN[:, worst_row] = loss
    table = make_losses(loss_SN, subject)
    return refresh_hard_suite(library, table, make_frame(), ("x",), share=0.05, at=NOW)


def test_only_another_model_in_production_creates_a_new_version(library):
    first = refresh(library, "one", worst_row=5)

    assert first.version == 1
    assert len(first.suite.rows) == 4
    assert refresh(library, "one", worst_row=6) == first
    assert refresh(library, "two", worst_row=6).version == 2
    assert library.load("hard", 1) == first


def test_a_diverged_model_creates_no_suite_and_keeps_the_existing_one(library):
    assert refresh(library, "one", loss=np.nan) is None
    first = refresh(library, "one")
    assert refresh(library, "two", loss=np.inf) == first


def test_a_user_suite_named_hard_is_not_changed(library):
    library.add(make_rows_suite(50, name="hard"), at=NOW)

    assert refresh(library, "one").suite == make_rows_suite(50, name="hard")
