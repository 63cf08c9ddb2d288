"""Receipts and units name the code they are about."""

import importlib
import sys

import pytest

from sluice.errors import SettingsError
from sluice.models.settings import ModelSettings
from sluice.training.code import code_digest
from tests.support.synthetic import SineWorkload

BASE = "from tests.support.synthetic import SineWorkload\nclass Base(SineWorkload): pass\n"
OWN = "from sluice_probe_base import Base\nclass Own(Base): pass\n"
NET = "from torch import nn\nclass Net(nn.Module): pass\n"


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Write and import the user's modules; return a function that changes one and digests."""
    monkeypatch.syspath_prepend(tmp_path)
    sources = {"sluice_probe_base": BASE, "sluice_probe_own": OWN, "sluice_probe_net": NET}
    for name, text in sources.items():
        (tmp_path / f"{name}.py").write_text(text)
    own = {name: importlib.import_module(name) for name in sources}
    model = ModelSettings(architecture="sluice_probe_net:Net")

    def digest(changed: str = "") -> str:
        if changed:
            path = tmp_path / f"{changed}.py"
            path.write_text(path.read_text() + "# changed\n")
        return code_digest(own["sluice_probe_own"].Own(), model)

    yield digest
    for name in sources:
        del sys.modules[name]


def test_unchanged_code_has_the_same_digest(modules):
    assert modules() == modules()


@pytest.mark.parametrize("name", ["sluice_probe_base", "sluice_probe_own", "sluice_probe_net"])
def test_a_change_in_the_users_code_changes_it(modules, name):
    before = modules()

    assert modules(name) != before


def test_sluices_own_training_code_enters(tmp_path, monkeypatch):
    import sluice

    before = code_digest(SineWorkload())
    package = tmp_path / "sluice"
    (package / "training").mkdir(parents=True)
    (package / "training" / "loop.py").write_text("# another loop\n")
    monkeypatch.setattr(sluice, "__file__", str(package / "__init__.py"))

    assert code_digest(SineWorkload()) != before


def test_code_without_a_file_is_refused():
    own = type("Own", (SineWorkload,), {"__module__": "nowhere"})

    with pytest.raises(SettingsError, match="'nowhere' must be read from a file"):
        code_digest(own())


def test_an_architecture_that_nobody_imported_yet_is_found_by_its_path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sluice_probe_late.py").write_text(NET)
    try:
        late = ModelSettings(architecture="sluice_probe_late:Net")
        assert code_digest(SineWorkload(), late) != code_digest(SineWorkload())
    finally:
        sys.modules.pop("sluice_probe_late", None)
    with pytest.raises(SettingsError, match="sluice_probe_gone"):
        code_digest(SineWorkload(), ModelSettings(architecture="sluice_probe_gone:Net"))
