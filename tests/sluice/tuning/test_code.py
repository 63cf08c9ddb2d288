"""REPRO-5: decisions belong to the code and the libraries that made them."""

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
    """A copy of the package's source that may be changed."""
    copy = tmp_path / "tuning"
    shutil.copytree(Path(sluice.tuning.__file__).parent, copy)
    monkeypatch.setattr("sluice.tuning.code.__file__", str(copy / "code.py"))
    return copy


@pytest.fixture
def searching() -> PipelineSettings:
    return read_pipeline(ECHO).model_copy(update={"search": SearchSettings(num_trials=4)})


def append(path: Path) -> None:
    path.write_text(path.read_text() + "\n# another rule\n")


def test_what_decides_enters_and_what_only_shows_does_not(package):
    before = search_code()
    append(package / "plots.py")
    assert search_code() == before
    append(package / "schedulers.py")
    changed = search_code()
    assert {name for name in before if before[name] != changed[name]} == {"search"}


def test_a_changed_stopping_rule_does_not_replay_an_old_journal(package, tmp_path):
    search(tmp_path / "search", settings(4))
    append(package / "schedulers.py")
    with pytest.raises(ContractError, match=r"code\.search was"):
        search(tmp_path / "search", settings(4))


def test_an_upgrade_begins_a_search_of_its_own(searching, monkeypatch):
    """Its folder goes by the subject; the finished one is not refused until it is removed."""
    alone = searching.model_copy(update={"search": None})
    inputs = [resolve(pipeline).search for pipeline in (searching, alone)]
    before = [search_subject(each, "data") for each in inputs]
    monkeypatch.setattr("torch.__version__", "9.9.9")
    after = [search_subject(each, "data") for each in inputs]

    assert {role for role in before[0] if before[0][role] != after[0][role]} == {"rules"}
    assert before[1] == after[1]  # without a search no decision is repeated
