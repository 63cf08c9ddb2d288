"""What the settings of a cluster refuse, and that no secret of theirs is stored or shown."""

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
    ("values", "said"),
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
def test_a_setting_that_cannot_be_used_is_refused_without_its_secret(values, said):
    with pytest.raises(SettingsError) as refused:
        parse(**values)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)
    with pytest.raises(ValueError, match=r".") as raw:
        ComputeSettings(**values)
    assert SECRET not in str(raw.value)


def test_a_variable_is_resolved_where_the_cluster_is_joined_and_not_in_the_settings(tmp_path):
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
    ("url", "said"),
    [
        ("nfs4://host/export", "Protocol not known"),
        ("s3://bucket/x?endpoint=1", "Unexpected query parameter"),
        ("s3://", "it does not name a bucket"),
    ],
)
def test_a_url_that_nothing_opens_is_refused(url, said, tmp_path):
    with pytest.raises(SettingsError, match=said):
        tune_storage(parse(storage_path=url), tmp_path)


def test_a_folder_is_tried_and_left_as_it_was(tmp_path):
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
def test_an_autoscaler_is_known_by_its_types_of_machines(reports, expected):
    assert _classify(reports) == expected


def test_a_search_is_not_run_through_ray_client(tmp_path):
    """Its journal would be written by a process of the cluster."""
    client = parse(address="ray://127.0.0.1:10001")
    with pytest.raises(SettingsError, match="requires the address of the head node as 'host:port'"):
        search(tmp_path / "study", compute=client, run=run_tuner)
