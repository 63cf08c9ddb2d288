"""Ray's autoscaler starts a machine for a search on a cluster without free cores.

The machines are processes that Ray's fake provider starts.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sluice.cluster.settings import ComputeSettings
from sluice.tuning.tuner import run_tuner
from tests.sluice.tuning.toy_space import decisions, search, settings
from tests.support.trials_on_nodes import Notes, Observed

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
ROOT = Path(__file__).parents[3]
START = "from ray.scripts.scripts import main; main()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def autoscaler_config(address: str) -> dict:
    """Return the configuration of an autoscaler that may start one machine with one core."""
    commands = ("initialization", "setup", "head_setup", "worker_setup")
    return {
        "cluster_name": "fake",
        "max_workers": 1,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": address,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {
            "head": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "small": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 1},
        },
        "head_node_type": "head",
        "auth": {},
        **{f"{name}_commands": [] for name in commands},
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
    }


@pytest.fixture
def empty_cluster(tmp_path):
    """The address of a cluster whose only machine has no cores."""
    import ray

    address = f"{ray.util.get_node_ip_address()}:{free_port()}"
    config = tmp_path / "autoscaler.json"
    config.write_text(json.dumps(autoscaler_config(address)))
    options = {
        "num-cpus": 0,
        "port": address.split(":")[1],
        "autoscaling-config": config,
        "include-dashboard": False,
        "dashboard-agent-listen-port": 0,
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    head = subprocess.Popen(
        [sys.executable, "-c", START, "start", "--head", "--block", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_FAKE_CLUSTER": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        },
    )
    printed = []
    for line in head.stdout:
        printed.append(line)
        if "block forever" in line:
            break
    assert head.poll() is None or head.returncode is None, "".join(printed)
    processes = [psutil.Process(head.pid)]
    yield address
    processes += processes[0].children(recursive=True)  # includes the machines of the provider
    head.send_signal(signal.SIGTERM)
    head.communicate(timeout=60)
    _, alive = psutil.wait_procs(processes[1:], timeout=5)
    for process in alive:
        process.kill()


def test_a_search_waits_until_the_autoscaler_has_started_a_machine(empty_cluster, tmp_path):
    search_settings = settings(4, ordered=True)
    (tmp_path / "notes").mkdir()
    notes, received = Notes(folder=tmp_path / "notes"), []

    result = search(
        tmp_path / "study",
        search_settings,
        toy=Observed(notes=notes.folder),
        compute=ComputeSettings(address=empty_cluster),
        run=run_tuner,
        log=received.append,
    )

    assert "(1 machine). The autoscaler was asked to add such a machine." in received[0]
    assert decisions(result) == decisions(search(tmp_path / "expected", search_settings))
    assert len(notes.machines()) == 1
    assert [machine for machine in notes.machines() if machine.startswith("ffff")]
