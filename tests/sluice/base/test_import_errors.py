"""Errors of importing a workload name the cause, the location and the fix (CONF-1)."""

import sys
from pathlib import Path

import pytest

from sluice.base.errors import SettingsError
from sluice.base.imports import add_pipeline_folder, import_object

FILES = {
    "needs.py": "\nimport polarsx\n",
    "part.py": "from sklearn.no_such_part import x\n",
    "broken.py": "x = 1\nclass A(:\n",
    "divides.py": "def f():\n    return 1 / 0\n\nf()\n",
    "leaves.py": "import sys\nsys.exit()\n",
    "silent.py": "raise ValueError\n",
    "foreign.py": "import winreg\n",
    "neighbour.py": "import inner_part\n",
    "sequences.py": "class Seq:\n    class Inner: ...\n",
    "sub/inner_part.py": "class Seq: ...\n",
    "sub/fails.py": "import no_such_package_at_all\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_import_continues_while_other_threads_import_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = [RuntimeError("dictionary changed size during iteration")] * 2

    def invalidate_caches() -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr("importlib.invalidate_caches", invalidate_caches)

    assert import_object("sequences:Seq", what="workload").__name__ == "Seq"
    assert not errors


def get_import_error(path: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        import_object(path, what="workload")
    return caught.value


@pytest.mark.parametrize(
    ("path", "message", "fix"),
    [
        ("needs:A", "needs.py line 2 imports polarsx, which is not inst", "that provides polarsx"),
        (
            "part:A",
            "part.py line 1 imports sklearn.no_such_part, which the installed package",
            "version of",
        ),
        ("broken:A", "broken.py line 2: invalid syntax in 'class A(:'", "Correct broken.py line 2"),
        ("divides:A", "divides.py line 2 raised ZeroDivisionError: division", "divides.py line 2."),
        ("silent:A", "silent.py line 1 raised ValueError.", "Correct silent.py line 1."),
        ("leaves:A", "leaves.py line 2 exits the process", "__main__"),
        ("neighbour:A", "Did you mean 'sub.inner_part'?", "start in the folder that contains it"),
        (
            "sub.fails:A",
            "sub/fails.py line 1 imports no_such_package_at_all",
            "that provides no_such_package_at_all",
        ),
        ("sequenses:Seq", "Did you mean 'sequences:Seq'?", "in the folder of sequenses.py, or"),
        ("inner_part:Seq", "Did you mean 'sub.inner_part:Seq'?", "check the spelling"),
        ("sub.iner_part:Seq", "Did you mean 'sub.inner_part:Seq'?", "check the spelling"),
        ("zzzz:A", "No module named 'zzzz', neither in", "in the folder of zzzz.py, or"),
        ("zzzz.part:A", "No module named 'zzzz', neither", "in the folder that contains zzzz/"),
        (
            "foreign:A",
            "foreign.py line 1 imports winreg, a module of the standard library that this Python",
            "Install a Python that has winreg",
        ),
        ("sequences:Sec", "Did you mean 'Seq'?", "after the colon"),
    ],
)
def test_import_error_has_location_cause_and_fix(path: str, message: str, fix: str) -> None:
    error = get_import_error(path)

    assert message in error.what
    assert fix in error.fix


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("sequences.py:Seq", "Write 'sequences:Seq'."),
        ("sub/inner_part.py:Seq", "Write 'sub.inner_part:Seq'."),
        ("./sub/inner_part.py:Seq", "Write 'sub.inner_part:Seq'."),
        ("sub/inner_part:Seq", "Write 'sub.inner_part:Seq'."),
        ("sequences.py", "Write 'sequences:MyClass'."),
        ("../other.py:Seq", "Start in the folder .. and write 'other:Seq'."),
        ("/far/away/other.py:Seq", "Start in the folder /far/away and write 'other:Seq'."),
    ],
)
def test_file_name_is_rejected_with_the_import_path(path: str, fix: str) -> None:
    assert get_import_error(path).fix == fix


def test_suggested_import_path_is_importable(folder: Path) -> None:
    assert import_object("sub.inner_part:Seq", what="workload").__name__ == "Seq"
    assert import_object("sequences:Seq.Inner", what="workload").__name__ == "Inner"
    fix = get_import_error(f"{folder}/sub/inner_part.py:Seq").fix
    assert fix == "Write 'sub.inner_part:Seq'."


def test_pipeline_module_with_the_name_of_a_standard_module_is_rejected(
    folder: Path,
) -> None:
    (folder / "random.py").write_text("class Seq: ...\n")

    with pytest.raises(SettingsError, match="finds another module of that name first") as caught:
        add_pipeline_folder(folder, ["random:Seq"])

    assert "standard library" in caught.value.cause
    assert caught.value.fix == "Rename random.py, and the name in the pipeline file."


def test_import_error_has_no_suggestion_without_a_similar_name() -> None:
    assert "Did you mean" not in get_import_error("zzzz:A").what
    assert "Did you mean" not in get_import_error("needs:A").what
