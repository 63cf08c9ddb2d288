"""Results of training a candidate: one fitted network (member) per seed and fold."""

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.diagnosis import Diagnosis
from sluice.training.code_identity import CodeIdentity
from sluice.workloads.codecs.identity import CodecIdentity


class Member(Record):
    """One fitted network of a candidate, its scores and the digests of its artifacts."""

    seed: int
    fold_id: int
    weights: str = Field(description="Artifact digest of the safetensors file.")
    event_log: str = Field(description="Artifact digest of the fold run's NDJSON log.")
    best_epoch: int = Field(
        description="Epoch after which the weights were copied, counted from 1."
    )
    epochs_run: int
    train_loss: float = Field(description="Training loss of the best epoch.")
    val_loss: float = Field(description="Validation loss after the best epoch.")
    test_metrics: dict[str, float]
    trained_through: str = Field(
        description="Index label of the last row that training or validation used."
    )
    seconds: float = Field(
        description="Total time of the epochs [s], including the epochs before a resume."
    )
    diagnoses: tuple[Diagnosis, ...] = Field(
        (), description="Faults that the trace of the training shows, ranked; () without a trace."
    )
    replay: str = Field(
        "", description="Artifact digest of the page that replays the training; '' without a trace."
    )


class TrainedModels(Record):
    """All members of one candidate, with the digests of everything that determines the members."""

    data: str = Field(description="Digest of the feature frame.")
    config: str = Field(description="Digest of workload, model and training settings.")
    code: str = Field(description="Digest of the code that determines the weights bit for bit.")
    code_identity: CodeIdentity | None = Field(
        None,
        description="Digests and versions that ``code`` is computed from; None in records of older "
        "versions.",
    )
    codec: CodecIdentity | None = Field(
        None,
        description="Codec of the training inputs, which servers apply to requests; None in "
        "records of older versions.",
    )
    seeds: tuple[int, ...]
    members: tuple[Member, ...]
    event_log: str = Field(description="Artifact digest of the merged and validated log.")
    seconds: float = Field(description="Wall time of training [s].")
    reused: int = Field(description="Number of members that an earlier run had already trained.")
    symptoms: tuple[str, ...] = Field(
        (),
        description="Symptoms of the learning curves, most common first, with the command to run.",
    )

    @property
    def candidate(self) -> str:
        """Digest of the inputs and the weights of the candidate, without times."""
        from sluice.base.digests import digest_json

        return digest_json(
            {
                "data": self.data,
                "config": self.config,
                "code": self.code,
                "members": [[m.seed, m.fold_id, m.weights] for m in self.members],
            }
        )
