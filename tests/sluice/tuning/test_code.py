"""REPRO-5: a search records the code and library versions that its decisions depend on."""

import shutil
from pathlib import Path

import pytest

import sluice.tuning
from sluice.assets.receipt_subjects import search_subject
from sluice.base.errors import ContractError
from sluice.config.pipeline import PipelineSettings, read_pipeline
from sluice.config.resolved import resolve
from sluice.tuning.code import search_code
from sluice.tuning.settings import SearchSettings
from tests.sluice.tuning.toy_space import search, settings

ECHO = Path(__file__).parents[2] / "support" / "echo.yaml"


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """Copy of the source of ``sluice.tuning`` that the test can edit."""
    copy = tmp_path / "tuning"
    shutil.copytree(Path(sluice.tuning.__file__).parent, copy)
    monkeypatch.setattr("sluice.tuning.code.__file__", str(copy / "code.py"))
    return copy


@pytest.fixture
def search_pipeline() -> PipelineSettings:
    return read_pipeline(ECHO).model_copy(update={"search": SearchSettings(num_trials=4)})


def append(path: Path) -> None:
    path.write_text(path.read_text() + "\n# another rule\n")


def test_search_code_covers_decisions_but_not_plots(package):
    before = search_code()
    append(package / "plots.py")
    assert search_code() == before
    append(package / "schedulers.py")
    changed = search_code()
    assert {name for name in before if before[name] != changed[name]} == {"search"}


def test_journal_of_another_scheduler_code_is_rejected(package, tmp_path):
    search(tmp_path / "search", settings(4))
    append(package / "schedulers.py")
    with pytest.raises(ContractError, match=r"code\.search was"):
        search(tmp_path / "search", settings(4))


def test_library_upgrade_changes_the_subject_of_a_search(search_pipeline, monkeypatch):
    """A search has the folder of its subject, so an upgrade does not conflict with old results."""
    alone = search_pipeline.model_copy(update={"search": None})
    inputs = [resolve(pipeline).search for pipeline in (search_pipeline, alone)]
    before = [search_subject(each, "data") for each in inputs]
    monkeypatch.setattr("torch.__version__", "9.9.9")
    after = [search_subject(each, "data") for each in inputs]

    assert {role for role in before[0] if before[0][role] != after[0][role]} == {"rules"}
    assert before[1] == after[1]  # without a search, the library version is irrelevant
