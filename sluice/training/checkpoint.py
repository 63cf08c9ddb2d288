"""Checkpoints: one safetensors file an epoch, whole or not there, never a pickle (REPRO-4).

A file is named ``epoch-000007-<digest>.safetensors``, with the first 16 digits of its own SHA-256,
so that a torn or changed one is known by its name alone. The last two are kept: when the newest
is damaged, training goes on from the one before and still ends with the same bits.
"""

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sluice.base.dict_diff import differences
from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError
from sluice.base.files import storage_error, write_atomic
from sluice.training.loop import EpochResult, TrainState
from sluice.training.weights import pack, unpack

_KEPT = 2
_NAME = re.compile(r"epoch-(\d{6})-([0-9a-f]{16})\.safetensors")
_PARTS = ("model", "best", "optimizer", "rng")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was found in a folder of checkpoints."""

    state: TrainState | None
    """The newest sound one, or None when there is none."""
    damaged: tuple[Path, ...]
    """Newer files that were passed over because their bytes are not those they were named by."""


def save_checkpoint(folder: Path, state: TrainState, *, subject: Mapping[str, Any]) -> Path:
    """Write ``state`` and drop all but the last two.

    Args:
        folder: Holds the checkpoints of one unit of training and nothing else.
        state: What to write.
        subject: What determines the bits (settings, data, seed), by name, as plain JSON. Loading
            refuses another one.

    Raises:
        StorageError: The folder cannot be written or the disk is full; the checkpoints before
            are untouched.
    """
    tensors = {
        f"{part}:{name}": tensor for part in _PARTS for name, tensor in getattr(state, part).items()
    }
    facts = {
        "subject": dict(subject),
        "steps": state.steps,
        "best_epoch": state.best_epoch,
        "optimizer": dict(state.optimizer_tree),
        "history": [dataclasses.asdict(result) for result in state.history],
    }
    content = pack(tensors, facts)
    path = folder / f"epoch-{len(state.history):06d}-{digest_bytes(content)[:16]}.safetensors"
    write_atomic(path, content)
    _drop(_newest_first(folder)[_KEPT:])
    return path


def discard_checkpoints(folder: Path) -> None:
    """Remove all checkpoints of a unit that is finished, and what killed writes left behind.

    That is of any file of the folder: the unit's log is written whole when it is rewound.
    """
    _drop([*_newest_first(folder), *folder.glob(".*")])


def load_checkpoint(folder: Path, *, subject: Mapping[str, Any]) -> Restored:
    """Read the newest checkpoint whose bytes are sound.

    Args:
        folder: As given to ``save_checkpoint``; it need not exist.
        subject: As given to ``save_checkpoint``.

    Raises:
        ContractError: It was written for another subject; the differing names are listed.
        StorageError: A file is there and cannot be read.
    """
    damaged: list[Path] = []
    for path in _newest_first(folder):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise storage_error(path, error) from error
        if _is_sound(path, content):
            return Restored(state=_decode(path, content, subject), damaged=tuple(damaged))
        damaged.append(path)
    return Restored(state=None, damaged=tuple(damaged))


def newest_subject(folder: Path) -> Mapping[str, Any] | None:
    """Return what the newest sound checkpoint in ``folder`` is of; None when there is none."""
    for path in _newest_first(folder):
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if _is_sound(path, content):
                subject: Mapping[str, Any] = unpack(content, where=str(path))[1]["subject"]
                return subject
    return None


def _is_sound(path: Path, content: bytes) -> bool:
    return digest_bytes(content)[:16] == path.stem.rpartition("-")[2]


def _drop(paths: list[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # one file too many does no harm
            path.unlink()


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("epoch-*") if _NAME.fullmatch(path.name)]
    return sorted(found, reverse=True)


def _decode(path: Path, content: bytes, subject: Mapping[str, Any]) -> TrainState:
    tensors, facts = unpack(content, where=str(path))
    _require_same(path, facts["subject"], subject)
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
    for key, tensor in tensors.items():
        part, _, name = key.partition(":")
        parts[part][name] = tensor
    return TrainState(
        history=tuple(EpochResult(**result) for result in facts["history"]),
        steps=facts["steps"],
        best_epoch=facts["best_epoch"],
        model=parts["model"],
        best=parts["best"],
        optimizer=parts["optimizer"],
        optimizer_tree=facts["optimizer"],
        rng=parts["rng"],
    )


def _require_same(path: Path, written: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = differences(dict(written), dict(wanted))
    if differing:
        raise ContractError(
            f"{path} was written for other settings: {'; '.join(differing[:5])}.",
            cause="Going on would mix two trainings.",
            fix="Restore the settings to resume, or remove the folder to start afresh.",
        )
