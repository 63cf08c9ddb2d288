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


def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert resolve_device("auto") == resolve_device("cpu") == CPU
    with pytest.raises(SettingsError, match="torch finds no CUDA device"):
        resolve_device("cuda")
    with pytest.raises(SettingsError, match="torch finds no CUDA device"):
        list(run(make_model(), TrainSettings(device="cuda")))


def test_with_a_gpu_auto_takes_it_and_cpu_does_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cpu") == CPU


def test_a_named_device_has_its_key_on_any_machine_and_auto_that_of_this_one(monkeypatch):
    """The process that distributes fold runs may have no GPU when their workers have."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert [device_type(choice) for choice in ("auto", "cpu", "cuda")] == ["cpu", "cpu", "cuda"]


def test_on_ray_auto_is_the_gpu_that_is_reserved():
    assert device_on_ray("auto", gpus_per_worker=0.25) == "cuda"
    assert device_on_ray("auto", gpus_per_worker=0.0) == "cpu"
    with pytest.raises(SettingsError, match=r"'cuda', but compute\.gpus_per_worker is 0\."):
        device_on_ray("cuda", gpus_per_worker=0.0)
    with pytest.raises(SettingsError, match=r"'cpu', but compute\.gpus_per_worker is 0\.5\."):
        device_on_ray("cpu", gpus_per_worker=0.5)


@pytest.mark.parametrize(("before", "after"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_starting_a_gpu_fixes_the_work_space_of_cublas(monkeypatch, before, after):
    """REPRO-2: without it torch refuses matrix products in deterministic mode."""
    started = []
    monkeypatch.setattr(torch.cuda, "init", lambda: started.append(1))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "x")  # so that it is put back
    if before is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    else:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before)
    start_device(CPU)
    assert (os.environ.get("CUBLAS_WORKSPACE_CONFIG"), started) == (before, [])
    start_device(torch.device("cuda"))

    assert (os.environ["CUBLAS_WORKSPACE_CONFIG"], started) == (after, [1])


@pytest.mark.parametrize(("free", "moved"), [(10**9, True), (100, False)])
def test_rows_go_to_the_device_when_they_leave_it_room(monkeypatch, free, moved):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2 * free))
    asked = []

    class Rows(torch.Tensor):
        def to(self, device):
            asked.append(device)
            return self

    some = torch.ones(25).as_subclass(Rows)  # 100 bytes
    rows = TRAIN.__class__(x=some, y=some, rows=TRAIN.rows)
    place_rows(rows, torch.device("cuda"))

    assert len(asked) == 2 * moved
    assert place_rows(TRAIN, CPU) is TRAIN


def test_a_model_without_parameters_is_where_its_rows_are():
    assert device_of(torch.nn.Identity(), CPU) == CPU


@pytest.mark.gpu
def test_training_on_a_gpu_ends_near_the_cpu_with_the_model_back_home():
    models = [make_model(dropout=0) for _ in range(3)]
    with deterministic():
        for model, device in zip(models, ("cpu", "cuda", "cuda"), strict=True):
            list(run(model, SETTINGS.model_copy(update={"device": device})))

    assert {p.device for p in models[1].parameters()} == {CPU}
    assert torch.equal(vector(models[1]), vector(models[2]))
    torch.testing.assert_close(vector(models[1]), vector(models[0]), rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_a_model_on_a_gpu_is_scored_on_rows_of_the_cpu():
    model = make_model(dropout=0)
    expected = mean_loss(model, losses_of, VAL)
    model.cuda()

    assert mean_loss(model, losses_of, VAL) == pytest.approx(expected, rel=1e-5)
    assert predict(model, VAL.x).is_cuda
