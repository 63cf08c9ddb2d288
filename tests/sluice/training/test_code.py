"""The code digest covers everything that can change a model, and changes are named."""

import importlib
import sys

import pytest

from sluice.base.errors import SettingsError
from sluice.models.settings import ModelSettings
from sluice.training.code import code_digest, identify_code, optimizer_code
from sluice.training.code_identity import describe_changes
from sluice.training.settings import TrainSettings
from tests.support.synthetic import SineWorkload

BASE = "from tests.support.synthetic import SineWorkload\nclass Base(SineWorkload): pass\n"
OWN = "from sluice_probe_base import Base\nclass Own(Base): pass\n"
NET = "from torch import nn\nclass Net(nn.Module): pass\n"


@pytest.fixture
def digest_after_change(tmp_path, monkeypatch):
    """Write and import user modules; return a function that edits one and returns the digest."""
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


def test_unchanged_code_has_the_same_digest(digest_after_change):
    assert digest_after_change() == digest_after_change()


@pytest.mark.parametrize("name", ["sluice_probe_base", "sluice_probe_own", "sluice_probe_net"])
def test_change_of_user_code_changes_the_digest(digest_after_change, name):
    before = digest_after_change()

    assert digest_after_change(name) != before


HELPED = """
from sluice_probe_losses import scaled
from tests.support.synthetic import SineWorkload

class Helped(SineWorkload):
    data_files = ("words.txt",)

    def losses(self, output, y):
        return scaled(super().losses(output, y))
"""


@pytest.fixture
def helper_workload(tmp_path, monkeypatch):
    """A workload with a helper, the helper's helper, a package and a data file."""
    monkeypatch.syspath_prepend(tmp_path)
    sources = {
        "sluice_probe_helped.py": HELPED,
        "sluice_probe_losses.py": "from sluice_probe_scale import SCALE\nimport sluice_probe_dist\n"
        "def scaled(x):\n    return SCALE * x\n",
        "sluice_probe_scale.py": "SCALE = 1\n",
        "unrelated.py": "x = 1\n",
        "words.txt": "one\n",
        "sluice_probe_dist.py": "",
        "sluice_probe_dist-1.0.dist-info/RECORD": "sluice_probe_dist.py,,\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    yield importlib.import_module("sluice_probe_helped").Helped()
    for name in [name for name in sys.modules if name.startswith("sluice_probe_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sluice_probe_losses.py", "module sluice_probe_losses changed"),
        ("sluice_probe_scale.py", "module sluice_probe_scale changed"),
        ("words.txt", "data file words.txt changed"),
    ],
)
def test_changed_module_or_data_file_is_named(helper_workload, tmp_path, name, message):
    before = identify_code(helper_workload)
    with (tmp_path / name).open("a") as file:
        file.write("# changed\n")
    after = identify_code(helper_workload)

    (change,) = after.changes(before)
    assert change.startswith(message)
    assert after.digest != before.digest
    assert describe_changes(after, before) == change


def test_changed_package_version_is_named(helper_workload, tmp_path):
    before = identify_code(helper_workload)
    (tmp_path / "sluice_probe_dist-1.0.dist-info").rename(
        tmp_path / "sluice_probe_dist-2.0.dist-info"
    )
    after = identify_code(helper_workload)

    assert after.changes(before) == ("package sluice_probe_dist 1.0 -> 2.0",)
    assert after.digest != before.digest


def test_unrelated_file_does_not_change_the_digest(helper_workload, tmp_path):
    before = identify_code(helper_workload)
    (tmp_path / "unrelated.py").write_text("# another\n")

    assert identify_code(helper_workload) == before


def test_missing_data_file_is_rejected(helper_workload, tmp_path):
    (tmp_path / "words.txt").unlink()

    with pytest.raises(SettingsError, match=r"The data file 'words.txt' that Helped declares"):
        identify_code(helper_workload)


def test_new_file_in_a_data_folder_changes_the_digest(helper_workload, tmp_path):
    (tmp_path / "words.txt").unlink()
    (tmp_path / "words.txt").mkdir()
    (tmp_path / "words.txt" / "a").write_text("1")
    before = identify_code(helper_workload)
    (tmp_path / "words.txt" / "b").write_text("2")

    assert identify_code(helper_workload).data_files != before.data_files


def test_dynamic_code_is_reported(helper_workload, tmp_path):
    assert identify_code(helper_workload).coverage_warning == ""
    (tmp_path / "sluice_probe_scale.py").write_text("SCALE = eval('2')\n")

    assert (
        "sluice_probe_scale, line 1: eval(...)" in identify_code(helper_workload).coverage_warning
    )


def test_change_without_a_stored_code_identity_is_described_as_code(helper_workload):
    assert describe_changes(identify_code(helper_workload), None) == "code"


def test_training_code_of_sluice_is_part_of_the_digest(tmp_path, monkeypatch):
    import sluice

    before = code_digest(SineWorkload())
    package = tmp_path / "sluice"
    (package / "training").mkdir(parents=True)
    (package / "training" / "loop.py").write_text("# another loop\n")
    monkeypatch.setattr(sluice, "__file__", str(package / "__init__.py"))

    assert code_digest(SineWorkload()) != before


def test_code_without_a_source_file_is_rejected():
    own = type("Own", (SineWorkload,), {"__module__": "nowhere"})

    with pytest.raises(SettingsError, match="'nowhere' must be read from a file"):
        code_digest(own())


def test_architecture_is_imported_by_its_path_for_the_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sluice_probe_late.py").write_text(NET)
    try:
        late = ModelSettings(architecture="sluice_probe_late:Net")
        assert code_digest(SineWorkload(), late) != code_digest(SineWorkload())
    finally:
        sys.modules.pop("sluice_probe_late", None)
    with pytest.raises(SettingsError, match="sluice_probe_gone"):
        code_digest(SineWorkload(), ModelSettings(architecture="sluice_probe_gone:Net"))


OPTIMIZER = """
import torch
from sluice_probe_decay import DECAY
class Own(torch.optim.SGD): pass
"""


def test_custom_optimizer_and_its_imports_are_part_of_the_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sluice_probe_optimizer.py").write_text(OPTIMIZER)
    (tmp_path / "sluice_probe_decay.py").write_text("DECAY = 0.1\n")
    own = TrainSettings(optimizer="sluice_probe_optimizer:Own")
    try:
        before = optimizer_code(own)
        (tmp_path / "sluice_probe_decay.py").write_text("DECAY = 0.2\n")
        after = optimizer_code(own)
    finally:
        for name in ("sluice_probe_optimizer", "sluice_probe_decay"):
            sys.modules.pop(name, None)

    assert before != after
    assert optimizer_code(TrainSettings(optimizer="sgd")) == {}
    assert optimizer_code(TrainSettings(optimizer="torch.optim:Adamax")).keys() == before.keys()
