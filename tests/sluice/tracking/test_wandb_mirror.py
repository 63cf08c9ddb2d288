"""Mirroring of a run to W&B: contents of offline runs, and failures of wandb (TRK-1)."""

import json
import os
import struct
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sluice.base.errors import SettingsError
from sluice.base.settings import Settings
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.tracked_run import Scalar, TrackedRun, fold_run_task
from sluice.tracking.wandb_mirror import mirror

RUN = TrackedRun(
    name="bars abc",
    pipeline="bars",
    candidate="c" * 64,
    config={"train": {"learning_rate": 0.002}, "seeds": [0, 1]},
    manifest={"weights": "d" * 64},
    scalars=(
        *(
            Scalar(
                split=split,
                task=fold_run_task(seed, 1),
                metric="loss",
                value=v / epoch,
                epoch=epoch,
            )
            for epoch in (1, 2, 3)
            for seed in (0, 1)
            for split, v in (("train", 1.0), ("val", 2.0 + seed))
        ),
        Scalar(split="test", metric="loss", value=0.643),
        Scalar(split="test", task="production", metric="loss", value=0.697),
        Scalar(split="test", metric="map@0.5:0.95", value=0.4),
        Scalar(split="system", metric="cpu_cores", value=2),
    ),
    tags=("promote",),
    notes="REJECT: no gain",
    labels={"training_group": "bars-1"},
)


def read_records(path: Path) -> list:
    """Parse a .wandb file, which is a LevelDB log of protobuf records, without wandb's reader."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, offset, records, payload = path.read_bytes(), 7, [], b""  # 7 bytes of file header
    while offset < len(data):
        if 32768 - offset % 32768 < 7:  # the rest of the block is too short for a record header
            offset += 32768 - offset % 32768
            continue
        _, length, record_type = struct.unpack("<IHB", data[offset : offset + 7])
        payload += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if record_type in (1, 4):  # a full record, or the last fragment of one
            records.append(Record.FromString(payload))
            payload = b""
    return records


def decode_items(update) -> dict:
    return {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in update}


def make_fake_wandb(folder: Path, body: str) -> dict[str, str]:
    """Return an environment in which `import wandb` runs ``body``."""
    (folder / "fake").mkdir()
    (folder / "fake" / "wandb.py").write_text(body)
    return {**os.environ, "PYTHONPATH": str(folder / "fake")}


@pytest.mark.slow
def test_offline_run_is_complete_and_mirrored_once(tmp_path, capfd):
    settings = TrackingSettings(project="p", tags=("t",))
    folder = tmp_path / "wandb"
    unrelated_variables = {
        "WANDB_MODE": "online",
        "WANDB_DIR": str(tmp_path / "elsewhere"),
        "WANDB_NOTES": "x",
    }
    environ = {**os.environ, **unrelated_variables}
    before = dict(os.environ)

    result = mirror(RUN, settings, folder=folder, environ=environ)

    assert result.ok, result.reason
    assert capfd.readouterr() == ("", "")
    assert dict(os.environ) == before
    assert [p.name for p in tmp_path.iterdir()] == ["wandb"]  # nothing outside its folder
    (log,) = Path(result.folder).glob("*.wandb")
    records = read_records(log)
    (run,) = (r.run for r in records if r.WhichOneof("record_type") == "run")
    assert (run.run_id, run.project, run.run_group) == (RUN.run_id, "p", "bars")
    assert (run.display_name, list(run.tags)) == ("bars abc", ["t", "promote"])
    # The notes are those of the run, not of WANDB_NOTES.
    assert run.notes == "REJECT: no gain"
    config = decode_items(run.config.update)
    assert config["train"] == {"learning_rate": 0.002}
    assert config["candidate"] == "c" * 64
    assert config["training_group"] == "bars-1"
    history = [
        decode_items(r.history.item) for r in records if r.WhichOneof("record_type") == "history"
    ]
    scalar_rows = [{k: v for k, v in row.items() if not k.startswith("_")} for row in history]
    assert scalar_rows == [
        {
            "epoch": epoch,
            "train/seed0-fold1/loss": 1 / epoch,
            "val/seed0-fold1/loss": 2 / epoch,
            "train/seed1-fold1/loss": 1 / epoch,
            "val/seed1-fold1/loss": 3 / epoch,
        }
        for epoch in (1, 2, 3)
    ]
    summary = {}
    for record in records:
        summary |= decode_items(record.summary.update)
    assert summary["test/loss"] == 0.643
    assert summary["test/production/loss"] == 0.697
    assert summary["test/map@0.5:0.95"] == 0.4
    assert summary["system/cpu_cores"] == 2
    (artifact,) = (
        r.request.log_artifact.artifact if r.WhichOneof("record_type") == "request" else r.artifact
        for r in records
        if r.WhichOneof("record_type") == "artifact" or r.request.HasField("log_artifact")
    )
    assert artifact.name == "candidate-bars"
    assert set(artifact.aliases) == {"latest", "c" * 12}
    (entry,) = artifact.manifest.contents
    staged = Path(entry.local_path)
    assert staged.is_relative_to(folder)
    assert json.loads(staged.read_text()) == {"weights": "d" * 64}
    assert any(r.WhichOneof("record_type") == "exit" for r in records)  # finished
    assert not any(r.WhichOneof("record_type") in ("stats", "output_raw") for r in records)

    repeated = mirror(RUN, settings, folder=folder, environ=environ)

    assert (repeated.ok, repeated.folder) == (True, result.folder)
    assert "mirrored already" in repeated.reason
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 1


def test_hanging_wandb_is_killed_with_its_children(tmp_path):
    environ = make_fake_wandb(
        tmp_path,
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "os.rename('child', 'child.pid')\n"
        "time.sleep(600)\n",
    )
    # On a busy machine the child may start late; only a started child shows that it is killed.
    for timeout_s in (1.5, 12.0, 48.0):
        folder, start = tmp_path / f"wandb{timeout_s:g}", time.monotonic()
        result = mirror(RUN, TrackingSettings(timeout_s=timeout_s), folder=folder, environ=environ)
        assert time.monotonic() - start < timeout_s + 10
        assert not result.ok
        assert f"not finished after {timeout_s:g} s (timeout_s)" in result.reason
        if (folder / "child.pid").exists():
            break

    pid, deadline = int((folder / "child.pid").read_text()), time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, "the child process outlived wandb"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_wandb_error_is_reported_and_its_incomplete_run_removed(tmp_path, capfd):
    environ = make_fake_wandb(
        tmp_path,
        "import os\n"
        f"os.makedirs('wandb/offline-run-1-{RUN.run_id}')\n"
        "print('noise')\n"
        "raise RuntimeError('no such project')\n",
    )

    result = mirror(RUN, TrackingSettings(), folder=tmp_path / "wandb", environ=environ)

    assert not result.ok
    assert result.reason == "Not mirrored to Weights & Biases: RuntimeError: no such project"
    assert list((tmp_path / "wandb" / "wandb").iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_run_folder_outside_the_given_folder_is_an_error(tmp_path):
    output = json.dumps({"folder": str(tmp_path / "elsewhere")})
    environ = make_fake_wandb(tmp_path, f"import os\nprint({output!r}, flush=True)\nos._exit(0)\n")

    result = mirror(RUN, TrackingSettings(), folder=tmp_path / "wandb", environ=environ)

    assert not result.ok
    assert "is not writable" in result.reason


def test_folder_that_cannot_be_created_is_reported_without_raising(tmp_path):
    (tmp_path / "file").write_text("a file")

    result = mirror(RUN, TrackingSettings(), folder=tmp_path / "file" / "wandb", environ={})

    assert not result.ok
    assert "Not a directory" in result.reason


def test_mode_off_writes_no_files(tmp_path):
    result = mirror(RUN, TrackingSettings(mode="off"), folder=tmp_path / "wandb", environ={})

    assert (result.ok, result.reason) == (True, "Tracking is off.")
    assert not (tmp_path / "wandb").exists()


def test_online_mode_without_a_key_is_reported(tmp_path):
    result = mirror(RUN, TrackingSettings(mode="online"), folder=tmp_path / "wandb", environ={})

    assert not result.ok
    assert "WANDB_API_KEY is not set" in result.reason


def test_default_mode_is_offline():
    assert issubclass(TrackingSettings, Settings)
    assert TrackingSettings().mode == "offline"


def test_yaml_boolean_false_means_mode_off():
    """YAML 1.1 parses an unquoted ``off`` as False."""
    assert TrackingSettings.parse({"mode": False}, where="defs.yaml").mode == "off"
    with pytest.raises(SettingsError, match="'offline', 'online' or 'off', got True"):
        TrackingSettings.parse({"mode": True}, where="defs.yaml")


@pytest.mark.slow
def test_credentials_in_the_config_are_redacted_in_all_files(tmp_path):
    secret = "s3cr3tValue9"
    config = {"url": f"https://u:{secret}@host/x", "login": {"password": secret}}
    run = replace(RUN, config=config, manifest={"resolved_config": config})

    result = mirror(run, TrackingSettings(), folder=tmp_path, environ=os.environ)

    assert result.ok
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(b"https://u:***@host/x" in content for content in files.values())
    assert [path for path, content in files.items() if secret.encode() in content] == []
