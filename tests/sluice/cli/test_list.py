"""``sluice list`` and ``sluice doctor`` show the pipelines of the folder in which they run."""

import json
from pathlib import Path

import pytest

from sluice.base.home import Home
from sluice.cli.app import run_command
from sluice.cli.doctor import DoctorSettings, examine
from sluice.config.pipeline import defs_folder, known_pipelines

MINE = """\
# A comment.
type: sluice.ModelPipeline
attributes: {name: mine, description: My own., workload: "tests.support.echo:Echo"}
"""


def test_pipelines_of_the_folder_are_listed_before_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(MINE)
    Path("broken.yaml").write_text("type: sluice.ModelPipeline\nattributes: {[\n")
    Path("digits.yaml").write_text(MINE)  # the command 'sluice run digits' finds the shipped one
    Path("values.yaml").write_text("type: something else\n")
    Path("bytes.yaml").write_bytes(b"\xff\xfe")

    assert run_command(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)

    assert [row["name"] for row in rows] == ["broken", "mine", *known_pipelines(defs_folder())]
    assert [row["description"] for row in rows[:2]] == ["", "My own."]
    assert all(Path(row["file"]).is_file() for row in rows)


@pytest.mark.slow
def test_doctor_checks_user_files_instead_of_shipped_pipelines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path("mine.yaml")
    own.write_text(MINE)
    wrong = Path("wrong.yaml")
    wrong.write_text(MINE.replace("name: mine", "nam: mine"))
    home = Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")
    found = {
        e.name: e
        for e in examine(home, defs_folder(), DoctorSettings(), user_files=[own, wrong])
        if e.name.startswith("pipeline ")
    }

    assert list(found) == ["pipeline mine.yaml", "pipeline wrong.yaml"]
    assert "Echo" in found["pipeline mine.yaml"].seen
    assert not found["pipeline wrong.yaml"].healthy
    assert "'nam'" in found["pipeline wrong.yaml"].seen
