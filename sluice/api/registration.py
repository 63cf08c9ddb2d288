"""Registers a model that was trained from Python, with the receipts of its gates."""

import inspect
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from sluice.api.evaluate import EvaluatedModel, evaluate
from sluice.api.fit import FittedModel
from sluice.assets.evaluation_record import StoredTable
from sluice.assets.receipt_subjects import candidate_subject, poc_subject
from sluice.base.environment import read_environment, read_git
from sluice.base.errors import GateBlocked, SettingsError
from sluice.base.home import Home
from sluice.base.receipts import Receipt
from sluice.config.pipeline import digest_gate_settings
from sluice.config.poc_settings import PocSettings
from sluice.evaluation.guard_settings import GuardSettings
from sluice.evaluation.guards import GuardEvidence
from sluice.evaluation.promotion_decision import decide_promotion
from sluice.evaluation.scoring import window_digest
from sluice.evaluation.settings import GateSettings
from sluice.evaluation.simple_rules import BaselineSettings
from sluice.evaluation.suites.settings import SuiteSettings
from sluice.failfast.gate.display import LiveLines, stderr_console
from sluice.failfast.gate.inputs import StoredData
from sluice.failfast.gate.request import GateRequest, PipelineTarget
from sluice.failfast.gate.supervisor import supervise
from sluice.registry.code_comparison import collect_own_modules
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import Lineage
from sluice.registry.records import Version
from sluice.registry.reference_choice import choose_reference
from sluice.registry.stored_code import CODE_ROLE, pack_code
from sluice.verdicts.verdict import Verdict
from sluice.workloads.codecs.identity import require_same_codec


def register_fitted(
    ledger: Ledger,
    model: str,
    fitted: FittedModel,
    *,
    home: Home,
    gate: GateSettings,
    guards: GuardSettings,
    actor: str,
    reason: str,
) -> tuple[Version, Verdict, bool]:
    """Evaluate a fitted model, decide on its promotion, and register it.

    Returns:
        The version, the verdict about this version, and whether the version is new.

    Raises:
        CodecMismatch: The workload decodes requests differently than in the training.
        GateBlocked: The POC gate did not pass on the model's rows and settings.
        SettingsError: The model is stored in another home.
    """
    if fitted.home.artifacts != home.artifacts:
        raise SettingsError(
            f"The registry uses the home {home.root}, but the model is stored in the home "
            f"{fitted.home.root}.",
            fix="Use the same SLUICE_HOME for the training and the registry.",
        )
    require_same_codec(
        f"The candidate of {model}", fitted.trained.codec, fitted.workload.codec().identity()
    )
    poc_receipt = _poc_receipt(ledger, model, fitted, guards)
    reference = choose_reference(
        ledger,
        model,
        candidate=fitted.trained.candidate,
        window=window_digest(fitted.frame, fitted.folds),
    )
    evaluated = evaluate(fitted, reference=reference)
    receipt = _decide(ledger, model, evaluated, gate, guards)
    registration = ledger.register(
        model,
        _lineage(model, evaluated),
        [poc_receipt, receipt],
        actor=actor,
        reason=reason,
    )
    return registration.version, Verdict.of(receipt), registration.created


def _poc_receipt(ledger: Ledger, model: str, fitted: FittedModel, guards: GuardSettings) -> Receipt:
    """Return a receipt of the POC gate that passed.

    If no such receipt is stored, the gate runs on the stored rows.
    """
    inputs, settings = fitted.inputs, PocSettings()
    subject = poc_subject(inputs, settings, fitted.table.digest)
    stored_receipt = ledger.find_receipt("poc", subject)
    if stored_receipt is not None and stored_receipt.passed:
        return stored_receipt
    target = PipelineTarget(
        name=model,
        path=inputs.path,
        workload_settings=inputs.workload_settings,
        model=inputs.model,
        training=inputs.training,
        poc=settings,
        guarded_metrics=guards.metric_names,
        stored_data=StoredData(
            raw=fitted.raw,
            features=fitted.table,
            folds=fitted.folds,
            artifacts=fitted.home.artifacts,
        ),
    )
    with LiveLines(stderr_console()) as lines:
        report = supervise(
            GateRequest(target=target, level="full", seed=0),
            folder=fitted.home.gates,
            on_event=lines,
        ).report
    receipt = report.receipt(subject, _now())
    ledger.record_receipt(receipt)
    if not report.passed:
        first_failure = (report.blocking_failures or report.results)[0]
        raise GateBlocked(report.reason, cause=first_failure.cause, fix=first_failure.fix)
    return receipt


def _decide(
    ledger: Ledger,
    model: str,
    evaluated: EvaluatedModel,
    gate: GateSettings,
    guards: GuardSettings,
) -> Receipt:
    """Return the recorded receipt of the promotion gate; if none exists, decide and record it."""
    fitted = evaluated.model
    workload, code_identity = fitted.workload, fitted.trained.code_identity
    evidence = GuardEvidence(
        candidate=evaluated.losses,
        reference=evaluated.reference_losses,
        candidate_metrics=evaluated.candidate.by_seed.metric_table,
        reference_metrics=evaluated.reference.by_seed.metric_table,
        approved_losses=None,
        deployed_losses=evaluated.candidate.deployed.losses,
        reference_deployed_losses=evaluated.reference.deployed.losses,
    )
    coverage_warning = "" if code_identity is None else code_identity.coverage_warning
    settings_digest = digest_gate_settings(BaselineSettings(), gate, guards, SuiteSettings())
    subject = candidate_subject(fitted.inputs, fitted.table.digest) | {"rules": settings_digest}

    def make_receipt(earlier_receipts: Sequence[Receipt]) -> Receipt:
        verdict = decide_promotion(
            evidence,
            gate,
            guards,
            earlier_verdicts=[Verdict.of(receipt) for receipt in earlier_receipts],
            directions=workload.metric_directions,
            horizon_rows=workload.horizon_rows,
            unit=workload.loss_unit,
        )
        tables = {
            f"{role} losses": table.digest for role, table in _store_losses(evaluated).items()
        }
        verdict = verdict.model_copy(
            update={"tables": tables, "caveats": (coverage_warning,) if coverage_warning else ()}
        )
        return verdict.with_symptoms([symptom.sentence for symptom in fitted.symptoms]).receipt(
            subject, decided_at=_now()
        )

    return ledger.decide(
        model,
        {
            "candidate": evidence.candidate.subject,
            "reference": evidence.reference.subject,
            "window": evidence.candidate.window,
        },
        make_receipt,
    )


def _store_losses(evaluated: EvaluatedModel) -> dict[str, StoredTable]:
    """Store the compared losses, and return the records of the stored tables by role."""
    store = evaluated.model.store
    return {
        "candidate": StoredTable.put(evaluated.losses, store),
        "reference": StoredTable.put(evaluated.reference_losses, store),
    }


def _lineage(model: str, evaluated: EvaluatedModel) -> Lineage:
    fitted = evaluated.model
    trained, store = fitted.trained, fitted.store
    tables = _store_losses(evaluated)
    own_modules = collect_own_modules(fitted.workload, fitted.inputs.model)
    assert trained.code_identity is not None
    return Lineage(
        model=model,
        candidate=trained.candidate,
        data=trained.data,
        config=trained.config,
        resolved_config=fitted.inputs.config,
        code=trained.code,
        code_identity=trained.code_identity,
        codec=trained.codec,
        git=read_git(Path(inspect.getfile(type(fitted.workload))).parent, store=store),
        seeds=trained.seeds,
        members=trained.members,
        metrics=evaluated.metrics,
        reference=evaluated.reference_losses.subject,
        training_seconds=sum(member.seconds for member in trained.members),
        environment=read_environment(),
        artifacts={
            "event log": trained.event_log,
            "losses": tables["candidate"].digest,
            "reference losses": tables["reference"].digest,
            CODE_ROLE: store.put(pack_code(own_modules)),
        },
        created_at=_now(),
    )


def _now() -> datetime:
    return datetime.now(UTC)
