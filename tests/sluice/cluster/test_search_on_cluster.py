"""A search on a cluster of two machines whose only common storage is an S3 server."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from sluice.cluster.autoscaling import find_autoscaler, wait_for_place
from sluice.cluster.ray_session import dashboard_url, join_ray
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.storage import tune_storage
from sluice.cluster.trial_resources import idle_share
from sluice.errors import SettingsError, StorageError
from tests.support import s3_server
from tests.support.trials_on_nodes import run_study

pytestmark = pytest.mark.slow
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "hunter-secret-2"}


@pytest.fixture(scope="module")
def s3():
    """An S3 server with the bucket 'studies': how to write it as a storage_path."""
    pytest.importorskip("moto")
    server = subprocess.Popen(
        [sys.executable, s3_server.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    port = next(line for line in server.stdout if line.startswith("port ")).split()[1]
    put = urllib.request.Request(f"http://127.0.0.1:{port}/studies", method="PUT")
    urllib.request.urlopen(put).close()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        yield f"s3://studies/{{}}?endpoint_override=http://127.0.0.1:{port}"
    server.communicate()  # closes its standard input, at which it ends


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> Path:
    """A folder of the user's with a package that nobody installed."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "lossy").mkdir()
    (folder / "lossy" / "__init__.py").write_text("SCALE = 7\n")
    (folder / "only_here.py").write_text("VALUE = 35\n")
    return folder


@pytest.fixture(scope="module")
def compute(cluster, s3, code) -> ComputeSettings:
    cluster.complete()
    return ComputeSettings(
        address=cluster.address,
        storage_path=s3.format("prefix"),
        runtime_env={
            "working_dir": str(code),
            "py_modules": [str(code / "lossy")],
            "env_vars": {name: f"${{{name}}}" for name in KEYS},
        },
    )


@pytest.fixture(scope="module")
def joined(compute):
    with join_ray(compute) as ray:
        yield ray


def test_the_users_modules_are_imported_from_working_dir_and_py_modules(joined):
    def import_them():
        import only_here
        from lossy import SCALE

        return only_here.VALUE / SCALE, os.environ["AWS_SECRET_ACCESS_KEY"]

    assert joined.get(joined.remote(import_them).remote()) == (5.0, KEYS["AWS_SECRET_ACCESS_KEY"])


@pytest.mark.usefixtures("joined")
def test_a_study_goes_on_when_a_node_is_lost_and_uses_one_that_joins(compute, cluster, tmp_path):
    cluster.complete()
    undisturbed = run_study(compute, tmp_path / "undisturbed")
    resumed, seen = [], set()

    def hear(result):
        seen.add(result["node"])
        if result["began_at"]:
            resumed.append(result["began_at"])
        if cluster.second is not None and len(seen) == 2 and not lost:
            lost.append(cluster.second.node_id)
            cluster.lose(gracefully=False)
        elif lost and resumed and not joins:
            cluster.complete()
            joins.append(cluster.second.node_id)

    lost, joins = [], []
    disturbed = run_study(compute, tmp_path / "disturbed", pause_s=0.3, hear=hear)

    assert disturbed == undisturbed
    assert len({epochs for epochs, _ in undisturbed.values()}) > 1  # some were stopped early
    assert len(lost) == 1
    assert resumed, "no trial went on from a checkpoint"
    assert joins[0] in seen, "the node that joined ran nothing"
    assert not list((tmp_path / "disturbed").glob("**/state.json"))


@pytest.mark.usefixtures("joined")
def test_a_folder_that_machines_do_not_share_is_refused(compute, tmp_path):
    """Machines of this test share a disk: a file system of this process alone stands in."""
    alone = compute.model_copy(update={"storage_path": "memory://results"})
    with pytest.raises(StorageError, match="cannot read it"):
        tune_storage(alone, tmp_path)
    shared = compute.model_copy(update={"storage_path": None})
    assert tune_storage(shared, tmp_path / "study") == (str(tmp_path / "study"), None)
    assert list((tmp_path / "study").iterdir()) == []


def test_what_a_limit_leaves_idle_is_said(joined, compute, cluster):
    cluster.complete()
    limited = compute.model_copy(update={"workers": 1})
    assert "1 trials run at a time (compute.workers), and 2 fit" in idle_share(joined, limited, 8)
    assert "(search.concurrent_trials)" in idle_share(joined, compute, 1)
    assert idle_share(joined, compute, None) == ""
    assert dashboard_url(joined) == ""


def test_too_large_a_trial_is_refused_without_an_autoscaler(joined, compute):
    heard = []
    with pytest.raises(SettingsError, match="reserves 64 GPU"):
        wait_for_place(joined, compute.model_copy(update={"gpus_per_worker": 64.0}), heard.append)
    assert find_autoscaler(joined) == "absent"
    assert heard == []


@pytest.mark.parametrize(
    ("path", "said"),
    [("no-such-bucket/x", "NO_SUCH_BUCKET"), ("studies/x&endpoint_over=1", "endpoint_over")],
)
def test_a_storage_that_takes_no_files_is_refused(s3, path, said, tmp_path):
    url = s3.format("x").replace("studies/x", path.split("&")[0])
    url += "&endpoint_over=1" if "&" in path else ""
    with pytest.raises((StorageError, SettingsError), match=said):
        tune_storage(ComputeSettings(storage_path=url), tmp_path)
