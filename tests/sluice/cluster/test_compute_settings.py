"""Invalid cluster settings are refused, and their secrets are neither stored nor shown."""

import pytest

from sluice.base.errors import SettingsError, StorageError
from sluice.cluster.autoscaling import _classify
from sluice.cluster.runtime_env import hide_values, resolve_runtime_env
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.storage import tune_storage
from sluice.tuning.tuner import run_tuner
from tests.sluice.tuning.toy_space import search

SECRET = "hunter-secret-2"
ADDRESS = "127.0.0.1:6379"


def parse(**values):
    return ComputeSettings.parse(values, where="compute")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"runtime_env": {"working_dir": "."}}, "runtime_env requires compute.address"),
        ({"address": ADDRESS, "runtime_env": {"workdir": "."}}, "Did you mean 'working_dir'"),
        (
            {"address": ADDRESS, "runtime_env": {"env_vars": {"AWS_SECRET_ACCESS_KEY": SECRET}}},
            "write ${NAME} in env_vars",
        ),
        (
            {"address": ADDRESS, "runtime_env": {"pip": [f"--index-url=https://a:{SECRET}@b/c"]}},
            "must not contain a secret",
        ),
        (
            {"storage_path": f"s3://key:{SECRET}@bucket/x"},
            "storage_path must not contain credentials",
        ),
        (
            {"storage_path": f"s3://bucket/x?secret_key={SECRET}"},
            "storage_path must not contain credentials",
        ),
    ],
)
def test_an_invalid_setting_is_refused_without_showing_its_secret(values, message):
    with pytest.raises(SettingsError) as refused:
        parse(**values)
    assert message in str(refused.value)
    assert SECRET not in str(refused.value)
    with pytest.raises(ValueError, match=r".") as raw:
        ComputeSettings(**values)
    assert SECRET not in str(raw.value)


def test_variables_are_resolved_only_when_the_cluster_is_joined(tmp_path):
    compute = parse(
        address=ADDRESS,
        runtime_env={
            "working_dir": str(tmp_path),
            "py_modules": [str(tmp_path)],
            "env_vars": {"DATABASE": "pg://u:${PASSWORD}@h"},
            "pip": ["einops==0.8"],
        },
    )

    resolved = resolve_runtime_env(compute.runtime_env, {"PASSWORD": SECRET})

    assert resolved["env_vars"]["DATABASE"] == f"pg://u:{SECRET}@h"
    assert resolved["env_vars"]["PYTHONHASHSEED"] == "0"
    assert resolved["py_modules"] == [str(tmp_path)]
    assert resolved["pip"] == ["einops==0.8"]
    assert SECRET not in compute.model_dump_json() + repr(compute)
    assert SECRET not in hide_values(f"failed with pg://u:{SECRET}@h", resolved)
    with pytest.raises(SettingsError, match="'PASSWORD', which is not set"):
        resolve_runtime_env(compute.runtime_env, {})


def test_a_folder_that_does_not_exist_is_refused_before_the_cluster_is_joined():
    compute = parse(address=ADDRESS, runtime_env={"working_dir": "/no/such/folder"})
    with pytest.raises(SettingsError, match="'/no/such/folder' does not exist"):
        resolve_runtime_env(compute.runtime_env, {})


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nfs4://host/export", "Protocol not known"),
        ("s3://bucket/x?endpoint=1", "Unexpected query parameter"),
        ("s3://", "it does not name a bucket"),
    ],
)
def test_an_invalid_storage_url_is_refused(url, message, tmp_path):
    with pytest.raises(SettingsError, match=message):
        tune_storage(parse(storage_path=url), tmp_path)


def test_the_check_of_a_storage_folder_leaves_no_files(tmp_path):
    assert tune_storage(parse(), tmp_path / "a") == (str(tmp_path / "a"), None)
    url = f"file://{tmp_path}/b"
    assert tune_storage(parse(storage_path=url), tmp_path) == (str(tmp_path / "b"), None)
    assert list((tmp_path / "a").iterdir()) == list((tmp_path / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        tune_storage(parse(storage_path=str(tmp_path / "file" / "x")), tmp_path)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([["node_ffff"], ["node_ffff", "node_0001"]], "absent"),
        ([["ray.head.default"], ["node_ffff"]], "present"),
        ([["node_ffff"], ["headgroup"]], "present"),
        ([[], []], "unknown"),
    ],
)
def test_an_autoscaler_is_detected_by_its_node_types(reports, expected):
    assert _classify(reports) == expected


def test_a_search_is_not_run_through_ray_client(tmp_path):
    """With Ray Client, a process of the cluster would write the journal."""
    client = parse(address="ray://127.0.0.1:10001")
    with pytest.raises(SettingsError, match="requires the address of the head node as 'host:port'"):
        search(tmp_path / "study", compute=client, run=run_tuner)
