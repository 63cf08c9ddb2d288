"""Subjects of the receipts: the digests of data, config, code and rules that a receipt applies to.

Later stages compare these digests with the current ones. A receipt for other data, settings, code
or rules is not accepted, and a stored value that other settings or code produced is not used.
"""

from sluice.base.digests import digest_json, short
from sluice.base.errors import GateBlocked
from sluice.config.pipeline import PipelineSettings
from sluice.data.expectations import Expectation
from sluice.data.schema import Schema
from sluice.failfast.gate.checks import CHECKS
from sluice.training.code import code_digest
from sluice.tuning.code import search_code
from sluice.tuning.spaces import Space


def raw_subject(pipeline: PipelineSettings, data: str) -> dict[str, str]:
    """Return the subject of the raw data receipt."""
    workload = pipeline.loaded_workload
    return {"data": data, "rules": _rules(workload.raw_schema, workload.raw_expectations)}


def features_subject(pipeline: PipelineSettings, data: str) -> dict[str, str]:
    """Return the subject of the feature receipt."""
    workload = pipeline.loaded_workload
    rules = _rules(
        workload.feature_schema,
        workload.feature_expectations,
        pipeline.poc.look_ahead.model_dump(mode="json"),
    )
    return {"data": data, "rules": rules, "maker": feature_producer(pipeline)}


def candidate_subject(pipeline: PipelineSettings, data: str) -> dict[str, str]:
    """Return the digests that determine a candidate: data, config and code."""
    return {
        "data": data,
        "config": pipeline.config_digest,
        "code": code_digest(pipeline.loaded_workload, pipeline.model),
    }


def poc_subject(pipeline: PipelineSettings, data: str) -> dict[str, str]:
    """Return the subject of the proof-of-concept receipt."""
    checks = [check.name for check in CHECKS]
    rules = digest_json([checks, pipeline.poc.model_dump(mode="json")])
    return candidate_subject(pipeline, data) | {"rules": rules}


def search_subject(pipeline: PipelineSettings, data: str) -> dict[str, str]:
    """Return the subject of the search receipt: the candidate's digests and the search settings.

    The number and type of the machines are not part of it. Whether trials use GPUs is, because
    GPU and CPU results are not bitwise identical.
    """
    plan = [
        pipeline.search.model_dump(mode="json") if pipeline.search else None,
        _ordered(pipeline.space) if pipeline.space else None,
        pipeline.search is not None and pipeline.compute.gpus_per_worker > 0,
        # Changed search code may select other trials, so it starts a separate search.
        search_code() if pipeline.search else None,
    ]
    return candidate_subject(pipeline, data) | {"rules": digest_json(plan)}


def _ordered(space: Space) -> list[object]:
    """Return the parameters as a list, because their order matters and JSON objects have none."""
    return [[path, p.model_dump(mode="json")] for path, p in space.parameters.items()]


def feature_producer(pipeline: PipelineSettings) -> str:
    """Return the digest of everything that produces features: workload, its settings and code."""
    return digest_json(
        {
            "workload": pipeline.workload,
            "settings": pipeline.config["workload_settings"],
            "code": code_digest(pipeline.loaded_workload),
        }
    )


def require_same(what: str, *, made_for: str, now: str, remedy: str) -> None:
    """Raise an error if a stored value was made for something other than the current input.

    Raises:
        GateBlocked: The digests differ.
    """
    if made_for != now:
        raise GateBlocked(
            f"{what} must match the current settings, code and data ({short(now)}), but was made "
            f"for {short(made_for)}.",
            cause="Settings, code or data changed afterwards.",
            fix=remedy,
        )


def _rules(schema: Schema, expectations: tuple[Expectation, ...], *more: object) -> str:
    declared = [e.model_dump(mode="json") for e in expectations]
    return digest_json([schema.model_dump(mode="json"), declared, *more])
