"""What training leaves behind: one member per seed and fold."""

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.diagnosis import Diagnosis
from sluice.training.code_identity import CodeIdentity


class Member(Record):
    """One fitted network and where its parts lie."""

    seed: int
    fold_id: int
    weights: str = Field(description="Artifact digest of the safetensors file.")
    event_log: str = Field(description="Artifact digest of the unit's NDJSON log.")
    best_epoch: int = Field(description="Epoch the weights are from, counted from 1.")
    epochs_run: int
    train_loss: float = Field(description="At the best epoch.")
    val_loss: float = Field(description="At the best epoch.")
    test_metrics: dict[str, float]
    trained_through: str = Field(
        description="Index label of the last row that training or validation saw."
    )
    seconds: float = Field(description="Fitting time [s], over all attempts.")
    diagnoses: tuple[Diagnosis, ...] = Field(
        (), description="What its trace shows to be wrong, ranked; () without a trace."
    )
    replay: str = Field(
        "", description="Artifact digest of the page that plays its training back; '' for none."
    )


class TrainedModels(Record):
    """Every member of one candidate, with the digests that determine them."""

    data: str = Field(description="Digest of the feature frame.")
    config: str = Field(description="Digest of workload, model and training settings.")
    code: str = Field(description="Digest of the code that determines the bits.")
    code_identity: CodeIdentity | None = Field(
        None, description="What the code digest is of; None in a record from before it was kept."
    )
    seeds: tuple[int, ...]
    members: tuple[Member, ...]
    event_log: str = Field(description="Artifact digest of the merged, validated log.")
    seconds: float = Field(description="Wall time of training [s].")
    reused: int = Field(description="Members that were finished before this run.")
    symptoms: tuple[str, ...] = Field(
        (), description="What the curves show to be wrong, most common first, with what to run."
    )

    @property
    def candidate(self) -> str:
        """Digest of what the candidate is: inputs and weights, no times."""
        from sluice.base.digests import digest_json

        return digest_json(
            {
                "data": self.data,
                "config": self.config,
                "code": self.code,
                "members": [[m.seed, m.fold_id, m.weights] for m in self.members],
            }
        )
