"""Selects the device of a training and moves rows to it."""

import dataclasses
import gc
import os

import torch
from torch import Tensor, nn

from sluice.base.errors import SettingsError
from sluice.training.settings import DeviceChoice
from sluice.workloads.examples import Examples

_MAX_MEMORY_SHARE = 0.5
"""Maximum share of a device's free memory that rows use; the rest is for the network."""

_CUBLAS_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""Environment variable and value that fix the workspace of cuBLAS, which costs 24 MiB per stream.
With a variable workspace cuBLAS sums in a nondeterministic order."""


def resolve_device(choice: DeviceChoice) -> torch.device:
    """Return the device that a setting selects on this machine, without initialising it.

    Raises:
        SettingsError: The choice is 'cuda', but torch finds no CUDA device.
    """
    use_cuda = choice != "cpu" and torch.cuda.is_available()
    if choice == "cuda" and not use_cuda:
        raise SettingsError(
            "device is 'cuda', but torch finds no CUDA device.",
            cause="The driver is missing, torch was built without CUDA, or CUDA_VISIBLE_DEVICES "
            "hides the device.",
            fix="Set device to 'auto' or 'cpu', or make the device visible to this process.",
        )
    return torch.device("cuda" if use_cuda else "cpu")


def device_type(choice: DeviceChoice) -> str:
    """Return the device type that a setting selects, which is part of the key of a fold run.

    Only 'auto' depends on this machine. 'cuda' is returned unchecked, so a process without a GPU
    can compute the key of a training on a GPU.
    """
    return resolve_device(choice).type if choice == "auto" else choice


def device_on_ray(choice: DeviceChoice, *, gpus_per_worker: float) -> DeviceChoice:
    """Return the device type for a worker on Ray, which can use only the GPUs that it reserves.

    Raises:
        SettingsError: A GPU is selected but not reserved, or reserved but not selected.
    """
    worker_device: DeviceChoice = "cuda" if gpus_per_worker > 0 else "cpu"
    if choice not in ("auto", worker_device):
        share = "0" if choice == "cpu" else "the number or fraction of GPUs that a training needs"
        raise SettingsError(
            f"training.device is '{choice}', but compute.gpus_per_worker is {gpus_per_worker:g}.",
            cause="A worker on Ray can use only the GPUs that it reserves.",
            fix=f"Set training.device to 'auto', or gpus_per_worker to {share}.",
        )
    return worker_device


def release_memory() -> None:
    """Free the GPU memory that torch caches after a training, for other processes on the GPU."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def start_device(device: torch.device) -> None:
    """Initialise the device for deterministic operations.

    Call this function before you read the state of the random generators: the generators of an
    uninitialised device have no state. On CUDA, ``CUBLAS_WORKSPACE_CONFIG`` is set if it is unset.
    cuBLAS reads the variable only once. Without the variable, torch refuses matrix products inside
    ``sluice.base.seeding.deterministic()``.
    """
    if device.type == "cuda":
        os.environ.setdefault(*_CUBLAS_WORKSPACE)
        torch.cuda.init()


def device_of(model: nn.Module, default: torch.device) -> torch.device:
    """Return the device of the parameters of ``model``; ``default`` if it has no parameters."""
    parameter = next(model.parameters(), None)
    return default if parameter is None else parameter.device


def place_rows(rows: Examples, device: torch.device) -> Examples:
    """Move the rows to ``device`` if they fit into half of its free memory.

    Otherwise, or if the rows are not tensors, return the rows unchanged. The caller then moves them
    batch by batch.
    """
    if device.type == "cpu":
        return rows
    if not (isinstance(rows.x, Tensor) and isinstance(rows.y, Tensor)):
        return rows
    needed_bytes = rows.x.nbytes + rows.y.nbytes
    free_bytes, _ = torch.cuda.mem_get_info(device)
    if needed_bytes > _MAX_MEMORY_SHARE * free_bytes:
        return rows
    return dataclasses.replace(rows, x=rows.x.to(device), y=rows.y.to(device))
