"""What may vary about training."""

from typing import Literal

from pydantic import Field

from sluice.settings import Settings

Precision = Literal["fp32", "bf16", "fp16"]
DeviceChoice = Literal["auto", "cpu", "cuda"]


class TrainSettings(Settings):
    """How one (seed, fold) unit is fitted."""

    max_epochs: int = Field(25, ge=1, le=100_000, description="Full passes over the train rows.")
    patience_epochs: int = Field(
        8, ge=1, description="Stop after this many epochs without a better validation loss."
    )
    batch_rows: int = Field(128, ge=1, description="Examples per optimizer step.")
    micro_batch_rows: int | None = Field(
        None,
        ge=1,
        description="Examples computed at once; a larger batch is done in parts, with the gradient "
        "of the whole. None for the whole batch at once.",
    )
    learning_rate: float = Field(2e-3, gt=0, le=100, description="Peak step size of AdamW.")
    weight_decay: float = Field(1e-2, ge=0, le=10, description="Decoupled decay of AdamW.")
    warmup_share: float = Field(
        0.05, ge=0, lt=1, description="Share of all steps over which the rate rises from 0."
    )
    final_rate_share: float = Field(
        0.05, ge=0, le=1, description="Rate at the end of the cosine, as a share of the peak."
    )
    clip_norm: float = Field(5.0, gt=0, description="Largest global gradient norm.")
    checkpoint_every_epochs: int = Field(1, ge=1, description="Epochs between checkpoints.")
    precision: Precision = Field(
        "fp32",
        description="Number format of the forward pass; fp16 goes back to fp32 when five steps in "
        "a row overflow. Validation and test are always in fp32.",
    )
    recompute_activations: bool = Field(
        False, description="Compute layers again in the backward pass: less memory, more time."
    )
    device: DeviceChoice = Field(
        "auto", description="Where to train; 'auto' takes a GPU where there is one."
    )
    loader_workers: int = Field(
        0,
        ge=0,
        le=64,
        description="Processes that gather batches ahead; 0 for none. It changes no bit.",
    )
