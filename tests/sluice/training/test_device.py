"""Device selection: a GPU if available, and a clear error if it is missing."""

import os

import pytest
import torch

from sluice.base.errors import SettingsError
from sluice.base.seeding import deterministic
from sluice.training.device import (
    device_of,
    device_on_ray,
    device_type,
    place_rows,
    resolve_device,
    start_device,
)
from sluice.training.loop import mean_loss, predict
from sluice.training.settings import TrainSettings
from tests.sluice.training.test_loop import (
    SETTINGS,
    TRAIN,
    VAL,
    losses_of,
    make_model,
    run,
    vector,
)

CPU = torch.device("cpu")


def test_without_a_gpu_auto_selects_the_cpu_and_cuda_is_rejected(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert resolve_device("auto") == resolve_device("cpu") == CPU
    with pytest.raises(SettingsError, match="torch finds no CUDA device"):
        resolve_device("cuda")
    with pytest.raises(SettingsError, match="torch finds no CUDA device"):
        list(run(make_model(), TrainSettings(device="cuda")))


def test_with_a_gpu_auto_selects_it_and_cpu_stays_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cpu") == CPU


def test_only_auto_depends_on_the_gpus_of_this_machine(monkeypatch):
    """The process that distributes fold runs may have no GPU although its workers have one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert [device_type(choice) for choice in ("auto", "cpu", "cuda")] == ["cpu", "cpu", "cuda"]


def test_device_on_ray_must_match_the_reserved_gpus():
    assert device_on_ray("auto", gpus_per_worker=0.25) == "cuda"
    assert device_on_ray("auto", gpus_per_worker=0.0) == "cpu"
    with pytest.raises(SettingsError, match=r"'cuda', but compute\.gpus_per_worker is 0\."):
        device_on_ray("cuda", gpus_per_worker=0.0)
    with pytest.raises(SettingsError, match=r"'cpu', but compute\.gpus_per_worker is 0\.5\."):
        device_on_ray("cpu", gpus_per_worker=0.5)


@pytest.mark.parametrize(("before", "after"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_starting_a_gpu_sets_the_cublas_workspace(monkeypatch, before, after):
    """REPRO-2: without this setting torch rejects matrix products in deterministic mode."""
    started = []
    monkeypatch.setattr(torch.cuda, "init", lambda: started.append(1))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "x")  # monkeypatch restores the original value
    if before is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    else:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before)
    start_device(CPU)
    assert (os.environ.get("CUBLAS_WORKSPACE_CONFIG"), started) == (before, [])
    start_device(torch.device("cuda"))

    assert (os.environ["CUBLAS_WORKSPACE_CONFIG"], started) == (after, [1])


@pytest.mark.parametrize(("free", "moved"), [(10**9, True), (100, False)])
def test_rows_are_moved_to_the_device_only_if_they_fit(monkeypatch, free, moved):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2 * free))
    target_devices = []

    class Rows(torch.Tensor):
        def to(self, device):
            target_devices.append(device)
            return self

    tensor = torch.ones(25).as_subclass(Rows)  # 100 bytes
    rows = TRAIN.__class__(x=tensor, y=tensor, rows=TRAIN.rows)
    place_rows(rows, torch.device("cuda"))

    assert len(target_devices) == 2 * moved
    assert place_rows(TRAIN, CPU) is TRAIN


def test_device_of_a_model_without_parameters_is_the_default():
    assert device_of(torch.nn.Identity(), CPU) == CPU


@pytest.mark.gpu
def test_gpu_training_is_close_to_cpu_and_returns_the_model_to_the_cpu():
    models = [make_model(dropout=0) for _ in range(3)]
    with deterministic():
        for model, device in zip(models, ("cpu", "cuda", "cuda"), strict=True):
            list(run(model, SETTINGS.model_copy(update={"device": device})))

    assert {p.device for p in models[1].parameters()} == {CPU}
    assert torch.equal(vector(models[1]), vector(models[2]))
    torch.testing.assert_close(vector(models[1]), vector(models[0]), rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_gpu_model_is_evaluated_on_cpu_rows():
    model = make_model(dropout=0)
    expected = mean_loss(model, losses_of, VAL)
    model.cuda()

    assert mean_loss(model, losses_of, VAL) == pytest.approx(expected, rel=1e-5)
    assert predict(model, VAL.x).is_cuda
