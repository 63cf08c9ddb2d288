"""Registered versions whose clients send texts, tokens, images or raw rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json
from sluice.evaluation.unseen_members import row_labels
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import BASELINE, Lineage
from sluice.training.weights import pack_model
from sluice.workloads.workload import Workload
from tests.sluice.registry.ledger_samples import (
    MODEL,
    poc_receipt,
    promotion_receipt,
    sample_lineage,
)
from tests.support.codec_workloads import (
    BlockWorkload,
    ImageWorkload,
    NamedBars,
    RawBars,
    TextWorkload,
    network_input,
    write_blocks,
    write_images,
    write_texts,
)

KINDS = ("texts", "tokens", "images", "rows", "named rows")


def make_workload(kind: str, folder: Path) -> Workload:
    """Return the workload of a kind, with its data in the folder."""
    types: dict[str, Any] = {
        "texts": (TextWorkload, write_texts),
        "tokens": (BlockWorkload, write_blocks),
        "images": (ImageWorkload, write_images),
        "rows": (RawBars, lambda _: {}),
        "named rows": (NamedBars, lambda _: {}),
    }
    cls, write = types[kind]
    return cls(cls.settings_type(**write(folder)))


def networks(workload: Workload, *, salt: int) -> list[Scaled]:
    """Return two networks with random weights."""
    built = []
    for seed in (0, 1):
        torch.manual_seed(10 * salt + seed)
        first = network_input(workload, 50)
        num_features = 0 if isinstance(first, dict) else first.shape[-1]
        network = workload.build_model(num_features, 1, ModelSettings(architecture="linear"))
        built.append(
            Scaled(
                network,
                num_features=num_features,
                num_outputs=1,
                scale_inputs=workload.scale_inputs,
                scale_target=workload.scale_target,
            )
        )
    return built


def codec_lineage(
    workload: Workload,
    store: ArtifactStore,
    *,
    salt: int,
    trained: Sequence[Scaled] | None = None,
) -> Lineage:
    """Return the lineage of two networks of a workload, by default with random weights."""
    settings = {
        "workload": f"{type(workload).__module__}:{type(workload).__name__}",
        "workload_settings": workload.settings.model_dump(mode="json"),
        "model": {"architecture": "linear"},
        "training": {"learning_rate": 2e-3},
    }
    sample = sample_lineage(store, salt=salt)
    frame = workload.compute_features(workload.load_rows())
    last_known = str(row_labels(frame.index)[workload.plan_folds(frame)[-1].val.stop - 1])
    members = tuple(
        member.model_copy(
            update={"weights": store.put(pack_model(network)), "trained_through": last_known}
        )
        for member, network in zip(
            sample.members, trained or networks(workload, salt=salt), strict=True
        )
    )
    draft = sample.model_copy(
        update={
            "resolved_config": settings,
            "config": digest_json(settings),
            "members": members,
            "codec": workload.codec().identity(),
        }
    )
    return draft.model_copy(update={"candidate": draft.compute_candidate()})


def register(ledger: Ledger, lineage: Lineage, *, reference: str = BASELINE) -> int:
    """Register a version that passed its gates; return its number."""
    receipts = [
        poc_receipt(config=lineage.config),
        promotion_receipt(
            lineage.candidate, reference=reference, subject={"config": lineage.config}
        ),
    ]
    return ledger.register(MODEL, lineage, receipts).version.number
