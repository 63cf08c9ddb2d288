"""Asset ``candidate``: the candidate as an immutable version in the registry."""

import inspect
import os
from pathlib import Path

import dagster as dg

from sluice.assets.best_config import BestConfig, apply_best_config
from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.drift_reference import DriftReferenceRecord
from sluice.assets.evaluation import suite_metadata
from sluice.assets.evaluation_record import Evaluation
from sluice.assets.metadata import REUSED, table
from sluice.assets.promotion_verdict import PromotionDecision
from sluice.assets.receipt_subjects import candidate_subject, poc_subject, require_same
from sluice.assets.resources import RECORDS, SluiceState, utc_now
from sluice.assets.spans import spanned
from sluice.assets.verdict_metadata import guard_table, verdict_pictures
from sluice.base.digests import short
from sluice.base.environment import read_environment, read_git
from sluice.base.receipts import require
from sluice.config.poc_settings import PocSettings
from sluice.config.resolved import SearchInputs
from sluice.registry.code_comparison import collect_own_modules
from sluice.registry.lineage import Lineage
from sluice.registry.records import Registration
from sluice.registry.stored_code import CODE_ROLE, pack_code
from sluice.tracking.registry_mirror import mirror_history
from sluice.tracking.settings import TrackingSettings
from sluice.training.members import TrainedModels
from sluice.workloads.codecs.identity import require_same_codec

# Metadata keys of the asset, which the promotion sensor and the command line read.
VERDICT_KEY = "verdict"
REASON_KEY = "reason"
CANDIDATE_KEY = "candidate"
VERSION_KEY = "version"
RECEIPT_KEY = "receipt"
IS_NEW_KEY = "new"
WORSE_METRICS_KEY = "worse"
"""The value is a text with the names of the metrics that got worse."""


def candidate_asset(
    pipeline: str,
    inputs: SearchInputs,
    *,
    poc: PocSettings,
    advised_power: float,
    tracking: TrackingSettings,
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline, "candidate"],
        ins={
            name: dg.AssetIn(key=[pipeline, name])
            for name in (
                "best_config",
                "trained_models",
                "drift_reference",
                "evaluation",
                "promotion_verdict",
            )
        },
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"sqlalchemy"},
        description="Registered version of the candidate, promoted or not, with its full lineage: "
        "data, config, code, git commit, seeds, weights, environment, metrics and receipts. "
        "Registering the same candidate again returns the same version.",
    )
    @spanned
    def candidate(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[SluiceState],
        best_config: BestConfig,
        trained_models: TrainedModels,
        drift_reference: DriftReferenceRecord,
        evaluation: Evaluation,
        promotion_verdict: PromotionDecision,
    ) -> dg.MaterializeResult[Registration]:
        training_inputs = apply_best_config(inputs, best_config)
        workload = training_inputs.workload
        source_folder = Path(inspect.getfile(type(workload))).parent
        receipt = promotion_verdict.receipt
        for what, digest in (
            ("The evaluation", evaluation.candidate.losses.subject),
            ("The verdict", receipt.subject["candidate"]),
            ("The drift reference", drift_reference.candidate),
        ):
            require_same(
                what,
                made_for=digest,
                current=trained_models.candidate,
                remedy="Materialize drift_reference, evaluation and promotion_verdict for these "
                "models first.",
            )
        subject = candidate_subject(training_inputs, trained_models.data)
        for role in ("config", "code"):
            require_same(
                f"The trained models' {role}",
                made_for=getattr(trained_models, role),
                current=subject[role],
                remedy="Materialize best_config and trained_models first.",
            )
        codec = workload.codec().identity()
        require_same_codec(f"The candidate of {pipeline}", trained_models.codec, codec)
        own_modules = collect_own_modules(workload, training_inputs.model)
        with sluice_state.ledger() as ledger:
            existing_version = ledger.version_of(pipeline, trained_models.candidate)
            is_trained_here = existing_version is not None and not existing_version.is_imported
            if (
                existing_version
                and is_trained_here
                and ledger.receipts(pipeline, existing_version.number)
            ):
                git = existing_version.lineage.git
            else:
                # The version is new or has no receipts yet, or was imported: the lineage of an
                # imported version contains the git state of another checkout.
                git = read_git(source_folder, store=sluice_state.store)
            receipts = [
                require(ledger.find_receipt(gate, subject), gate=gate, subject=subject)
                for gate, subject in (
                    ("poc", poc_subject(inputs.base, poc, trained_models.data)),
                    ("search", best_config.subject | {"found": trained_models.config}),
                )
            ]
            registration = ledger.register(
                pipeline,
                Lineage(
                    model=pipeline,
                    candidate=trained_models.candidate,
                    data=trained_models.data,
                    config=trained_models.config,
                    resolved_config=training_inputs.config,
                    code=trained_models.code,
                    code_identity=trained_models.code_identity,
                    codec=trained_models.codec,
                    git=git,
                    seeds=trained_models.seeds,
                    num_trials=best_config.num_trials,
                    members=trained_models.members,
                    metrics=evaluation.candidate.metrics,
                    reference=evaluation.reference.losses.subject,
                    training_seconds=sum(m.seconds for m in trained_models.members),
                    environment=read_environment(),
                    artifacts={
                        "event log": trained_models.event_log,
                        "losses": evaluation.candidate.losses.digest,
                        "reference losses": evaluation.reference.losses.digest,
                        "suites": evaluation.suites,
                        CODE_ROLE: sluice_state.store.put(pack_code(own_modules)),
                        **drift_reference.references.artifacts,
                        **({"search": best_config.study} if best_config.study else {}),
                    },
                    created_at=utc_now(),
                ),
                [*receipts, receipt],
            )
            publications = mirror_history(
                ledger,
                pipeline,
                tracking,
                store=sluice_state.store,
                folder=sluice_state.home.wandb,
                environ=os.environ,
            )
        version = registration.version
        novelty = "new" if registration.created else "existing, same data, config, code and weights"
        context.log.info(
            f"version {version.number} ({novelty}), {receipt.outcome}: {receipt.reason}"
        )
        return dg.MaterializeResult(
            value=registration,
            data_version=dg.DataVersion(version.candidate),
            metadata={
                VERDICT_KEY: receipt.outcome,
                REASON_KEY: receipt.reason,
                WORSE_METRICS_KEY: ", ".join(
                    c.metric for c in promotion_verdict.verdict.worse_metrics
                ),
                CANDIDATE_KEY: version.candidate,
                RECEIPT_KEY: receipt.digest,
                VERSION_KEY: version.number,
                IS_NEW_KEY: registration.created,
                **({} if registration.created else {REUSED: f"version {version.number}"}),
                "compared with": evaluation.reference_name,
                "guards": guard_table(promotion_verdict.verdict),
                **verdict_pictures(
                    promotion_verdict.verdict,
                    evaluation.evidence(sluice_state.store),
                    advised_power=advised_power,
                ),
                **suite_metadata(
                    evaluation.suite_report(sluice_state.store), pipeline, sluice_state
                ),
                "lineage": table(
                    [
                        {"item": "data", "value": short(version.lineage.data)},
                        {"item": "config", "value": short(version.lineage.config)},
                        {"item": "code", "value": short(version.lineage.code)},
                        {"item": "git commit", "value": version.lineage.git.commit[:12]},
                        {"item": "search trials", "value": best_config.num_trials},
                        {"item": "seeds", "value": ", ".join(map(str, version.lineage.seeds))},
                        {"item": "members", "value": len(version.lineage.members)},
                        {
                            "item": "training time",
                            "value": f"{version.lineage.training_seconds:.0f} s",
                        },
                    ]
                ),
                "metrics": table([dict(evaluation.candidate.metrics)]),
                "command": dg.MetadataValue.md(
                    f"`sluice registry show {pipeline} {version.number}`"
                ),
                "tracking": " ".join(
                    publication.reasons[-1] if publication.reasons else "Already mirrored."
                    for publication in publications
                ),
            },
        )

    return candidate
