"""Specification of a fold run, and the key and the folder that are derived from it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sluice.base.digests import digest_json, short
from sluice.data.folds import Fold
from sluice.data.table import TableRecord
from sluice.models.settings import ModelSettings
from sluice.training.code import code_digest, optimizer_code
from sluice.training.device import device_type
from sluice.training.settings import SETTINGS_WITHOUT_EFFECT, TrainSettings
from sluice.workloads.load import load_workload
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRunSpec:
    """Everything that a process needs to train one fold run, on any machine."""

    workload: str
    """Import path, 'module:Class'."""
    workload_settings: dict[str, Any]
    model: ModelSettings
    training: TrainSettings
    seed: int
    fold: Fold
    table: TableRecord
    """Record of the feature frame."""
    artifacts: Path
    """Folder of the artifact store."""
    runs: Path
    """Folder that contains one folder for each fold run."""
    data_seed: int | None = None
    """Base seed of the row order; ``seed`` if None."""
    num_ranks: int = 1
    """Number of processes that train the model together. It changes the rounding of sums, so it is
    part of the key."""
    sys_path: tuple[str, ...] = ()
    """Folders to add to ``sys.path``, so that the workload can be imported in another process."""

    @property
    def name(self) -> str:
        """Name of the fold run in messages."""
        return f"Seed {self.seed}, fold {self.fold.fold_id}"


def open_workload(spec: FoldRunSpec) -> Workload:
    """Import and build the workload of ``spec``.

    Raises:
        SettingsError: The workload cannot be imported, is not a workload, or has an invalid
            setting.
    """
    sys.path.extend(folder for folder in spec.sys_path if folder not in sys.path)
    return load_workload(spec.workload, spec.workload_settings, where=spec.workload)


def fold_run_subject(spec: FoldRunSpec, workload: Workload | None = None) -> dict[str, Any]:
    """Return everything that determines the result of a fold run bit for bit, by name.

    The digest of the returned dictionary is the key of the fold run, and names its folder.

    Args:
        spec: The fold run.
        workload: Its workload if it is already open; otherwise, it is imported and built.

    Raises:
        SettingsError: See ``open_workload``.
    """
    workload = workload or open_workload(spec)
    return {
        "data": spec.table.digest,
        "workload": spec.workload,
        "workload_settings": workload.settings.model_dump(mode="json"),
        "model": spec.model.model_dump(mode="json"),
        "training": spec.training.model_dump(
            mode="json", exclude={*SETTINGS_WITHOUT_EFFECT, "device"}
        ),
        # The resolved device type: a CPU and a GPU do not give the same bits.
        "device": device_type(spec.training.device),
        "code": code_digest(workload, spec.model),
        **optimizer_code(spec.training),
        "torch": torch.__version__,
        "seed": spec.seed,
        "data_seed": spec.data_seed,
        "ranks": spec.num_ranks,
        "fold": spec.fold.model_dump(mode="json"),
    }


def fold_run_folder(spec: FoldRunSpec, subject: dict[str, Any] | None = None) -> Path:
    """Return the folder of the fold run's checkpoints and log.

    Args:
        spec: The fold run.
        subject: Result of ``fold_run_subject`` for this spec; None to compute it.
    """
    return spec.runs / short(digest_json(subject or fold_run_subject(spec)))
