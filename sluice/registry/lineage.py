"""Lineage of a version: everything needed to reproduce or audit it."""

import math
import re
from typing import Any

from pydantic import AwareDatetime, Field

from sluice.base.digests import digest_json, short
from sluice.base.environment import Environment, GitState
from sluice.base.settings import Record
from sluice.training.code_identity import CodeIdentity
from sluice.training.members import Member, TrainedModels
from sluice.workloads.codecs.identity import CodecIdentity

BASELINE = "baseline"
"""Reference of a candidate while no version is in production."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Lineage(Record):
    """Inputs and results of the training of one candidate."""

    model: str = Field(description="Name of the pipeline, and of the model in the registry.")
    candidate: str = Field(
        description="Candidate digest, which covers the inputs and the weights; see "
        "TrainedModels.candidate."
    )
    data: str = Field(description="Digest of the feature frame.")
    config: str = Field(description="Digest of the settings of workload, model and training.")
    resolved_config: dict[str, Any] = Field(
        description="All settings with their resolved values, as plain JSON."
    )
    code: str = Field(description="Digest of the code that determines the trained weights.")
    code_identity: CodeIdentity | None = Field(
        None,
        description="Digests of the modules, packages and data files that the code digest covers; "
        "None for versions of older releases.",
    )
    git: GitState
    seeds: tuple[int, ...]
    num_trials: int = Field(
        0,
        description="Number of trials of the search that found the settings; 0 without a search.",
    )
    members: tuple[Member, ...]
    metrics: dict[str, float] = Field(description="Metrics on the test rows, by name.")
    reference: str = Field(
        description="Candidate digest of the model that this candidate was compared with, or "
        "'baseline'."
    )
    training_seconds: float = Field(description="Training time of all members [s].")
    environment: Environment
    artifacts: dict[str, str] = Field(
        default={},
        description="Digests of further artifacts by role, for example a report or a plot.",
    )
    codec: CodecIdentity | None = Field(
        None,
        exclude_if=lambda codec: codec is None,
        description="Codec of the training inputs, which servers apply to requests; None for "
        "versions of older releases.",
    )
    created_at: AwareDatetime

    def missing_fields(self) -> tuple[str, ...]:
        """Return the names of the empty or invalid fields; () if the lineage is complete."""
        is_valid_by_field = {
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
        return tuple(name for name, is_valid in is_valid_by_field.items() if not is_valid)

    def weights(self) -> dict[str, str]:
        """Return the digests of the safetensors files of all members, by role."""
        return {f"weights of seed {m.seed} fold {m.fold_id}": m.weights for m in self.members}

    def other_artifacts(self) -> dict[str, str]:
        """Return the digests of all artifacts of the version except the weights, by role."""
        logs = {f"event log of seed {m.seed} fold {m.fold_id}": m.event_log for m in self.members}
        return logs | self.artifacts

    def find_contradiction(self) -> str:
        """Return the first inconsistency between the digests, as a clause; "" if consistent.

        A receipt names the candidate digest and the config digest. If the digests are consistent,
        the candidate digest covers the served weights, and the config digest covers the settings.
        """
        config_digest = digest_json(self.resolved_config)
        if config_digest != self.config:
            return (
                f"its config digest is {short(self.config)}, but its settings have the digest "
                f"{short(config_digest)}"
            )
        if self.code_identity is not None and self.code_identity.digest != self.code:
            return (
                f"its code digest is {short(self.code)}, but its modules, packages and data files "
                f"have the digest {short(self.code_identity.digest)}"
            )
        candidate_digest = self.compute_candidate()
        if candidate_digest != self.candidate:
            return (
                f"its candidate digest is {short(self.candidate)}, but its data, config, code and "
                f"weights have the digest {short(candidate_digest)}"
            )
        return ""

    def compute_candidate(self) -> str:
        """Return the candidate digest computed from data, config, code and weights."""
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
