"""Where a version comes from (REG-1): enough to make it again, or to argue with it."""

import math
import re
from typing import Any

from pydantic import AwareDatetime, Field

from sluice.base.digests import digest_json, short
from sluice.base.environment import Environment, GitState
from sluice.base.settings import Record
from sluice.training.code_identity import CodeIdentity
from sluice.training.members import Member, TrainedModels

BASELINE = "baseline"
"""What a candidate is compared with while no version is in production."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Lineage(Record):
    """What went into one candidate, and what came out."""

    model: str = Field(description="Name of the pipeline, and of the model in the registry.")
    candidate: str = Field(description="Digest of inputs and weights: TrainedModels.candidate.")
    data: str = Field(description="Digest of the feature frame.")
    config: str = Field(description="Digest of workload, model and training settings.")
    resolved_config: dict[str, Any] = Field(description="Every setting as used, plain JSON.")
    code: str = Field(description="Digest of the code that determines the bits.")
    code_identity: CodeIdentity | None = Field(
        None, description="What the code digest is of; None in a version from before it was kept."
    )
    git: GitState
    seeds: tuple[int, ...]
    num_trials: int = Field(
        0, description="Trials of the search that the settings were chosen of; 0 without one."
    )
    members: tuple[Member, ...]
    metrics: dict[str, float] = Field(description="On the test rows, by name.")
    reference: str = Field(
        description="Candidate digest of the model compared with, or 'baseline'."
    )
    training_seconds: float = Field(description="Fitting time of all members [s].")
    environment: Environment
    artifacts: dict[str, str] = Field(
        default={}, description="Further artifact digests by role: event log, report, plot."
    )
    created_at: AwareDatetime

    def missing_fields(self) -> tuple[str, ...]:
        """Return the names of the fields that say nothing; complete lineage returns ()."""
        told = {
            "model": bool(self.model),
            "candidate": _is_digest(self.candidate),
            "data": _is_digest(self.data),
            "config": _is_digest(self.config),
            "resolved_config": bool(self.resolved_config),
            "code": _is_digest(self.code),
            "git.commit": bool(self.git.commit),
            "seeds": bool(self.seeds) and {m.seed for m in self.members} == set(self.seeds),
            "members": bool(self.members) and all(_is_digest(m.weights) for m in self.members),
            "metrics": bool(self.metrics),
            "reference": self.reference == BASELINE or _is_digest(self.reference),
            "training_seconds": math.isfinite(self.training_seconds) and self.training_seconds > 0,
            "environment.python": bool(self.environment.python),
            "environment.device": bool(self.environment.device),
            "environment.libraries": bool(self.environment.libraries),
        }
        return tuple(name for name, is_told in told.items() if not is_told)

    def weights(self) -> dict[str, str]:
        """Return the digest of every safetensors file a served model reads, by role."""
        return {f"weights of seed {m.seed} fold {m.fold_id}": m.weights for m in self.members}

    def other_artifacts(self) -> dict[str, str]:
        """Return the digests of everything else that is kept with the version, by role."""
        logs = {f"event log of seed {m.seed} fold {m.fold_id}": m.event_log for m in self.members}
        return logs | self.artifacts

    def contradiction(self) -> str:
        """Return what in here does not fit together, as part of a sentence; "" when all does.

        It ties what is served to the receipts: a receipt names candidate and config, the candidate
        names the weights, and the config is the digest of the settings.
        """
        settings = digest_json(self.resolved_config)
        if settings != self.config:
            return f"its config is {short(self.config)}, and its settings make {short(settings)}"
        if self.code_identity is not None and self.code_identity.digest != self.code:
            return (
                f"its code is {short(self.code)}, and the parts of its code make "
                f"{short(self.code_identity.digest)}"
            )
        found = self.candidate_of_parts()
        if found != self.candidate:
            return (
                f"its candidate is {short(self.candidate)}, and its data, config, code and "
                f"weights make {short(found)}"
            )
        return ""

    def candidate_of_parts(self) -> str:
        """Return the candidate digest that data, config, code and weights really have."""
        return TrainedModels(
            data=self.data,
            config=self.config,
            code=self.code,
            seeds=self.seeds,
            members=self.members,
            event_log="",
            seconds=0.0,
            reused=0,
        ).candidate


def _is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None
