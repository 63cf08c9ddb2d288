"""Defines the mirrored content of a finished run: scalars, config and manifest."""

import json
import numbers
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sluice.base.digests import digest_json
from sluice.base.errors import ContractError

Split = Literal["train", "val", "test", "system"]
"""What a scalar was measured on: a split of the rows, or the machine (system)."""

_NAME_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:-]*")
"""Matches one part of a scalar's name."""


def fold_run_task(seed: int, fold_id: int) -> str:
    """Return the task name of one fold run.

    >>> fold_run_task(0, 1)
    'seed0-fold1'
    """
    return f"seed{seed}-fold{fold_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One named number of a run.

    The name is ``{split}/{metric}`` or ``{split}/{task}/{metric}``. For a resource of the machine,
    the name is ``system/{resource}``. ``epoch`` counts from 1; None means a result of the whole
    run.

    Raises:
        ContractError: The value is not a real number, but for example a tensor, an array or a text;
            or a part of the name contains characters other than letters, digits and '_.@:-', or
            starts with neither a letter nor a digit.
    """

    split: Split
    metric: str
    value: float
    task: str = ""
    epoch: int | None = None

    def __post_init__(self) -> None:
        for part in (self.split, self.metric, *([self.task] if self.task else [])):
            if not _NAME_PART.fullmatch(part):
                raise ContractError(
                    "Each part of a tracked name must consist of letters, digits and '_.@:-', and "
                    f"start with a letter or digit, got {part!r}.",
                    fix="Rename the metric or task; '/' separates the parts of a name.",
                )
        if isinstance(self.value, bool) or not isinstance(self.value, numbers.Real):
            raise ContractError(
                f"{self.name} must be a plain number, got {type(self.value).__name__}.",
                cause="Tracking accepts scalars, not tensors or arrays.",
                fix="Reduce the value to one number, and convert the number with float(...).",
            )
        object.__setattr__(self, "value", float(self.value))

    @property
    def name(self) -> str:
        """Full name of the scalar."""
        return "/".join(part for part in (self.split, self.task, self.metric) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """All content that is mirrored for one run.

    Raises:
        ContractError: ``config`` or ``manifest`` is not plain JSON, or two scalars have the same
            name and epoch.
    """

    name: str
    pipeline: str
    candidate: str
    """Digest of the candidate."""

    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    """Manifest of the candidate, stored as a versioned artifact ``candidate-<pipeline>``."""

    scalars: tuple[Scalar, ...]
    tags: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    """Additional names of the artifact with the manifest, such as 'production'."""
    notes: str = ""
    """Text shown with the run, such as the reason of the verdict."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Values by which users filter runs: the verdict, and the group of the fold runs. They are
    stored with the config."""

    def __post_init__(self) -> None:
        try:
            json.dumps([self.config, self.manifest])
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"Config and manifest of a tracked run must be plain JSON, got: {error}.",
                fix="Pass model_dump(mode='json') of the settings.",
            ) from None
        seen_names_and_epochs: set[tuple[str, int | None]] = set()
        for scalar in self.scalars:
            name_and_epoch = (scalar.name, scalar.epoch)
            if name_and_epoch in seen_names_and_epochs:
                raise ContractError(
                    f"{scalar.name} must be tracked once per epoch, got it twice for "
                    f"{'the whole run' if scalar.epoch is None else f'epoch {scalar.epoch}'}.",
                    fix="Use a separate task name for each fold run (fold_run_task).",
                )
            seen_names_and_epochs.add(name_and_epoch)

    @property
    def run_id(self) -> str:
        """Digest of the content, so that a run has the same id each time it is mirrored."""
        content = asdict(self)
        for name in ("aliases", "notes", "labels"):
            if not content[name]:  # so that runs from before the field existed keep their ids
                del content[name]
        return digest_json(content)[:16]
