"""Where a training computes, and how its rows get there."""

import dataclasses
import gc
import os

import torch
from torch import nn

from sluice.base.errors import SettingsError
from sluice.training.settings import DeviceChoice
from sluice.workloads.workload import Examples

_SHARE = 0.5
"""Rows may take this share of a device's free memory; the rest is for the network."""

_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""cuBLAS adds in an order of its own choice unless its work space is fixed; 24 MiB a stream."""


def resolve_device(choice: DeviceChoice) -> torch.device:
    """Return the device that a setting means on this machine; nothing is started on it.

    Raises:
        SettingsError: 'cuda' is asked for and there is none.
    """
    found = choice != "cpu" and torch.cuda.is_available()
    if choice == "cuda" and not found:
        raise SettingsError(
            "device is 'cuda', and torch sees no CUDA device here.",
            cause="No driver, a build of torch without CUDA, or CUDA_VISIBLE_DEVICES hides it.",
            fix="Set device to 'auto' or 'cpu', or make the device visible to this process.",
        )
    return torch.device("cuda" if found else "cpu")


def device_type(choice: DeviceChoice) -> str:
    """Return the kind of device that a setting means, for the key of a result.

    Only 'auto' is looked up, so a process without a GPU knows the key of what another one trains.
    """
    return resolve_device(choice).type if choice == "auto" else choice


def device_on_ray(choice: DeviceChoice, *, gpus_per_worker: float) -> DeviceChoice:
    """Return what a setting means for a worker on Ray, which sees the GPUs that it reserves.

    Raises:
        SettingsError: A GPU is asked for and none reserved, or the other way round.
    """
    meant: DeviceChoice = "cuda" if gpus_per_worker > 0 else "cpu"
    if choice not in ("auto", meant):
        share = "0" if choice == "cpu" else "the GPUs, or the share of one, that it needs"
        raise SettingsError(
            f"training.device is '{choice}' and compute.gpus_per_worker {gpus_per_worker:g}.",
            cause="A worker on Ray sees the GPUs that it reserves, and no other.",
            fix=f"Leave training.device at 'auto', or set gpus_per_worker to {share}.",
        )
    return meant


def release_memory() -> None:
    """Give back what a training left in the GPU's caches; others may share it."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def start_device(device: torch.device) -> None:
    """Make the device ready for deterministic operations.

    Call it before the random generators are read: those of a device that was not started have no
    state to save. On CUDA ``CUBLAS_WORKSPACE_CONFIG`` is set unless it is set already, for cuBLAS
    reads it once; without it torch refuses matrix products inside ``seeds.deterministic()``.
    """
    if device.type == "cuda":
        os.environ.setdefault(*_CUBLAS)
        torch.cuda.init()


def device_of(model: nn.Module, default: torch.device) -> torch.device:
    """Return where the parameters of ``model`` are."""
    parameter = next(model.parameters(), None)
    return default if parameter is None else parameter.device


def place(rows: Examples, device: torch.device) -> Examples:
    """Return the rows on ``device`` when they leave it room, else where they are.

    Rows that stay are moved batch by batch.
    """
    if device.type == "cpu":
        return rows
    needed = rows.x.nbytes + rows.y.nbytes
    free, _ = torch.cuda.mem_get_info(device)
    if needed > _SHARE * free:
        return rows
    return dataclasses.replace(rows, x=rows.x.to(device), y=rows.y.to(device))
