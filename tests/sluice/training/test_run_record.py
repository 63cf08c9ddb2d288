"""REPRO-5: the run record contains what is needed to repeat a run."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from sluice.base import environment
from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json
from sluice.training.run_record import RunRecord, read_run
from sluice.training.settings import TrainSettings

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def run_git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    run_git(folder, "init", "-q")
    (folder / "a.py").write_text("x = 1\n")
    run_git(folder, "add", "a.py")
    run_git(folder, "commit", "-q", "-m", "first")
    return folder


def make_record(source, *, store=None, data="d" * 64, training=None, **options) -> RunRecord:
    return read_run(
        training or TrainSettings(), data=data, source=source, store=store, now=NOW, **options
    )


def test_run_record_contains_code_config_data_machine_and_command(repository, tmp_path):
    (repository / "a.py").write_text("x = 2\n")
    store = ArtifactStore(tmp_path / "artifacts")
    run = make_record(repository, store=store, command=["sluice", "run"])

    assert len(run.git.commit) == 40
    assert b"-x = 1\n+x = 2\n" in store.get(run.git.diff)
    assert run.resolved_config == TrainSettings().model_dump(mode="json")
    assert run.config == digest_json(run.resolved_config)
    # The default build of torch has its CUDA version only in ``torch.__version__``.
    assert torch.__version__.startswith(run.environment.libraries["torch"])
    assert len(run.devices) == run.environment.device_count
    assert run.command == ("sluice", "run")
    assert run.folder == str(Path.cwd())
    assert RunRecord.model_validate_json(run.model_dump_json()) == run


def test_default_command_is_that_of_the_process_with_interpreter_options():
    script = (
        "from sluice.training import run_record as r, settings as s; from datetime import *; "
        "from pathlib import Path; print(r.read_run(s.TrainSettings(), data='', source=Path('/'), "
        "store=None, now=datetime.now(UTC)).command[1:3])"
    )
    path = f"import sys; sys.path[:] = {sys.path!r}; "
    command = [sys.executable, "-X", "utf8", "-c", path + script, "tail"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "('-X', 'utf8')"


def test_differences_between_two_runs_are_named(repository):
    one = make_record(repository, command=["a"])
    again = make_record(repository, command=["b"])
    (repository / "a.py").write_text("x = 2\n")
    other = make_record(repository, data="e" * 64, training=TrainSettings(batch_rows=64))
    lines = one.differences(other)

    assert one.differences(again) == ()
    assert [line.split(":")[0] for line in lines] == [
        "data",
        "git.diff",
        "git.dirty",
        "resolved_config.batch_rows",
    ]
    assert lines[3] == "resolved_config.batch_rows: 128 in this run, 64 in the other run"


def test_truncated_diffs_have_different_digests(repository, monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "MAX_DIFF_BYTES", 200)
    store = ArtifactStore(tmp_path / "artifacts")
    digests = []
    for last in "ab":
        (repository / "a.py").write_text("x = 2\n" * 1000 + last)
        digests.append(make_record(repository, store=store).git.diff)
    kept = [store.get(digest) for digest in digests]

    assert [len(text) < 350 for text in kept] == [True, True]
    assert b"bytes in all, SHA-256" in kept[0]
    assert digests[0] != digests[1]


def test_run_record_contains_no_credentials(tmp_path):
    secret = "s3cr3tValue9"
    config = {"url": f"https://u:{secret}@host/x", "login": {"password": secret}, "seeds": [1]}

    run = read_run(
        config,
        data="d",
        source=tmp_path,
        store=None,
        now=datetime.now(UTC),
        command=("sluice", "--token", secret, f"--set=url=https://u:{secret}@host/x"),
    )

    assert secret not in run.model_dump_json()
    assert run.resolved_config["seeds"] == [1]
