"""Checkpoints: safetensors files, written atomically, never a pickle.

A file is named ``epoch-000007-<digest>.safetensors`` after 7 epochs, and
``epoch-000007-step-000000120-<digest>.safetensors`` after 120 steps of the next epoch. The digest
is the first 16 digits of the SHA-256 of the content, so a truncated or changed file does not match
its name. The last two files are kept: if the newest file is damaged, training resumes from the
previous file and still ends with the same bits.

Shape legend: S = finished steps of an epoch.
"""

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sluice.base.dict_diff import format_differences
from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError
from sluice.base.files import read_error, write_atomic
from sluice.training.precision import ScaleState
from sluice.training.train_state import EpochProgress, EpochResult, TrainState
from sluice.training.weights import pack_tensors, unpack_tensors

_NUM_KEPT_CHECKPOINTS = 2
_FILE_NAME = re.compile(r"epoch-(\d{6,})(?:-step-(\d{9,}))?-([0-9a-f]{16})\.safetensors")
_TENSOR_FIELDS = ("model", "best", "optimizer", "rng")
"""Fields of ``TrainState`` that contain tensors by name."""
_PROGRESS_KEY = "progress"
"""Prefix of the names of the progress tensors, and key of the other progress values."""
_STEP_TENSORS = ("loss_S", "norm_S", "taken_S")
"""Fields of ``EpochProgress`` that have one entry per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCheckpoint:
    """The newest valid checkpoint of a folder, and the damaged checkpoints that were skipped."""

    state: TrainState | None
    """State of the newest valid checkpoint; None if there is no valid checkpoint."""
    damaged_paths: tuple[Path, ...]
    """Newer files that were skipped, because the digest in their name does not match."""


def save_checkpoint(folder: Path, state: TrainState, *, subject: Mapping[str, Any]) -> Path:
    """Write ``state`` and remove all but the last two checkpoints.

    Args:
        folder: Folder of one fold run, which also contains its event log.
        state: The state to write.
        subject: Everything that determines the result bit for bit (settings, data, seed), by name,
            as JSON values. ``load_checkpoint`` refuses a checkpoint with another subject.

    Raises:
        StorageError: The folder cannot be written or the disk is full; earlier checkpoints are
            unchanged.
    """
    tensors = {
        f"{field}:{name}": tensor
        for field in _TENSOR_FIELDS
        for name, tensor in getattr(state, field).items()
    }
    tensors |= _progress_tensors(state.progress)
    metadata = {
        "subject": dict(subject),
        "steps": state.steps,
        "best_epoch": state.best_epoch,
        "optimizer": dict(state.optimizer_tree),
        "history": [dataclasses.asdict(result) for result in state.history],
        **_progress_metadata(state.progress),
    }
    content = pack_tensors(tensors, metadata)
    path = folder / f"{_file_prefix(state)}-{digest_bytes(content)[:16]}.safetensors"
    write_atomic(path, content)
    _remove(_newest_first(folder)[_NUM_KEPT_CHECKPOINTS:])
    return path


def discard_checkpoints(folder: Path) -> None:
    """Remove all checkpoints of a finished fold run, and partial files of killed processes.

    Partial files are hidden files. They are parts of checkpoints or of the event log, which is
    rewritten as a whole when it is truncated.
    """
    _remove([*_newest_first(folder), *folder.glob(".*")])


def load_checkpoint(folder: Path, *, subject: Mapping[str, Any]) -> LoadedCheckpoint:
    """Read the newest valid checkpoint.

    Args:
        folder: Folder that was passed to ``save_checkpoint``; it need not exist.
        subject: Subject of the training that resumes, as for ``save_checkpoint``.

    Raises:
        ContractError: The checkpoint was written for another subject; the message lists the
            differences.
        StorageError: A file exists and cannot be read.
    """
    damaged_paths: list[Path] = []
    for path in _newest_first(folder):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise read_error(path, error) from error
        if _is_valid(path, content):
            return LoadedCheckpoint(
                state=_decode(path, content, subject), damaged_paths=tuple(damaged_paths)
            )
        damaged_paths.append(path)
    return LoadedCheckpoint(state=None, damaged_paths=tuple(damaged_paths))


def newest_subject(folder: Path) -> Mapping[str, Any] | None:
    """Return the subject of the newest valid checkpoint; None if no checkpoint is valid."""
    for path in _newest_first(folder):
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if _is_valid(path, content):
                subject: Mapping[str, Any] = unpack_tensors(content, where=str(path))[1]["subject"]
                return subject
    return None


def _is_valid(path: Path, content: bytes) -> bool:
    return digest_bytes(content)[:16] == path.stem.rpartition("-")[2]


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # a file that remains does no harm
            path.unlink()


def _newest_first(folder: Path) -> list[Path]:
    checkpoints = [path for path in folder.glob("epoch-*") if _FILE_NAME.fullmatch(path.name)]
    return sorted(checkpoints, key=_sort_key, reverse=True)


def _file_prefix(state: TrainState) -> str:
    step = "" if state.progress is None else f"-step-{state.progress.steps:09d}"
    return f"epoch-{len(state.history):06d}{step}"


def _sort_key(path: Path) -> tuple[int, int, str]:
    match = _FILE_NAME.fullmatch(path.name)
    assert match is not None
    epochs, step, digest = match.groups()
    return int(epochs), int(step or 0), digest


def _progress_tensors(progress: EpochProgress | None) -> dict[str, Tensor]:
    if progress is None:
        return {}
    return {f"{_PROGRESS_KEY}:{name}": getattr(progress, name) for name in _STEP_TENSORS}


def _progress_metadata(progress: EpochProgress | None) -> dict[str, Any]:
    if progress is None:
        return {}
    return {
        _PROGRESS_KEY: {
            "learning_rate": progress.learning_rate,
            "seconds": progress.seconds,
            "scale": dataclasses.asdict(progress.scale),
        }
    }


def _decode(path: Path, content: bytes, subject: Mapping[str, Any]) -> TrainState:
    tensors, metadata = unpack_tensors(content, where=str(path))
    _require_same_subject(path, metadata["subject"], subject)
    fields: dict[str, dict[str, Tensor]] = {name: {} for name in (*_TENSOR_FIELDS, _PROGRESS_KEY)}
    for key, tensor in tensors.items():
        field, _, name = key.partition(":")
        fields[field][name] = tensor
    return TrainState(
        history=tuple(EpochResult(**result) for result in metadata["history"]),
        steps=metadata["steps"],
        best_epoch=metadata["best_epoch"],
        model=fields["model"],
        best=fields["best"],
        optimizer=fields["optimizer"],
        optimizer_tree=metadata["optimizer"],
        rng=fields["rng"],
        progress=_decode_progress(fields[_PROGRESS_KEY], metadata.get(_PROGRESS_KEY)),
    )


def _decode_progress(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None
) -> EpochProgress | None:
    """Return the progress within an epoch; None for the state after an epoch."""
    if metadata is None:
        return None
    return EpochProgress(
        loss_S=tensors["loss_S"],
        norm_S=tensors["norm_S"],
        taken_S=tensors["taken_S"],
        learning_rate=metadata["learning_rate"],
        seconds=metadata["seconds"],
        scale=ScaleState(**metadata["scale"]),
    )


def _require_same_subject(
    path: Path, stored_subject: Mapping[str, Any], expected_subject: Mapping[str, Any]
) -> None:
    differences = format_differences(dict(stored_subject), dict(expected_subject))
    if differences:
        raise ContractError(
            f"{path} was written by another training: {'; '.join(differences[:5])}.",
            cause="Resuming would mix two trainings.",
            fix="Restore these values to resume, or remove the folder to start again.",
        )
