"""Selects the device of a training and moves rows to it."""

import dataclasses
import gc
import os

import torch
from torch import Tensor, nn

from sluice.base.errors import SettingsError
from sluice.training.settings import DeviceChoice
from sluice.workloads.workload import Examples

_MAX_MEMORY_SHARE = 0.5
"""Share of a device's free memory that rows may use; the rest is for the network."""

_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""cuBLAS sums in a nondeterministic order unless its workspace is fixed; 24 MiB per stream."""


def resolve_device(choice: DeviceChoice) -> torch.device:
    """Return the device that a setting selects on this machine, without initialising it.

    Raises:
        SettingsError: 'cuda' is selected and not available.
    """
    found = choice != "cpu" and torch.cuda.is_available()
    if choice == "cuda" and not found:
        raise SettingsError(
            "device is 'cuda', but torch finds no CUDA device.",
            cause="The driver is missing, torch was built without CUDA, or CUDA_VISIBLE_DEVICES "
            "hides the device.",
            fix="Set device to 'auto' or 'cpu', or make the device visible to this process.",
        )
    return torch.device("cuda" if found else "cpu")


def device_type(choice: DeviceChoice) -> str:
    """Return the type of device that a setting selects, for the key of a result.

    Only 'auto' is resolved, so a process without a GPU can compute the key of a GPU training.
    """
    return resolve_device(choice).type if choice == "auto" else choice


def device_on_ray(choice: DeviceChoice, *, gpus_per_worker: float) -> DeviceChoice:
    """Return the device type for a worker on Ray, which can use only the GPUs that it reserves.

    Raises:
        SettingsError: A GPU is selected but not reserved, or reserved but not selected.
    """
    selected: DeviceChoice = "cuda" if gpus_per_worker > 0 else "cpu"
    if choice not in ("auto", selected):
        share = "0" if choice == "cpu" else "the number or fraction of GPUs that a training needs"
        raise SettingsError(
            f"training.device is '{choice}', but compute.gpus_per_worker is {gpus_per_worker:g}.",
            cause="A worker on Ray can use only the GPUs that it reserves.",
            fix=f"Set training.device to 'auto', or gpus_per_worker to {share}.",
        )
    return selected


def release_memory() -> None:
    """Free the GPU memory that torch caches after a training, for other processes on the GPU."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def start_device(device: torch.device) -> None:
    """Initialise the device for deterministic operations.

    Call this before the state of the random generators is read: the generators of an uninitialised
    device have no state. On CUDA, ``CUBLAS_WORKSPACE_CONFIG`` is set unless it already is, because
    cuBLAS reads it once; without it torch refuses matrix products inside ``seeds.deterministic()``.
    """
    if device.type == "cuda":
        os.environ.setdefault(*_CUBLAS)
        torch.cuda.init()


def device_of(model: nn.Module, default: torch.device) -> torch.device:
    """Return the device of the parameters of ``model``."""
    parameter = next(model.parameters(), None)
    return default if parameter is None else parameter.device


def place_rows(rows: Examples, device: torch.device) -> Examples:
    """Return the rows on ``device`` if they fit into half of its free memory, else unchanged.

    Rows that do not fit, and rows that are no tensor, are moved batch by batch.
    """
    if device.type == "cpu":
        return rows
    if not (isinstance(rows.x, Tensor) and isinstance(rows.y, Tensor)):
        return rows
    needed = rows.x.nbytes + rows.y.nbytes
    free, _ = torch.cuda.mem_get_info(device)
    if needed > _MAX_MEMORY_SHARE * free:
        return rows
    return dataclasses.replace(rows, x=rows.x.to(device), y=rows.y.to(device))
