"""What each gate's receipt is about, by digest: whoever acts later compares with the present.

A receipt about other data, other settings, other code or other rules does not count, and a value
that was made by other settings or code than the present ones is not used.
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
    """Return what the receipt of the raw rows is about."""
    workload = pipeline.loaded_workload
    return {"data": data, "rules": _rules(workload.raw_schema, workload.raw_expectations)}


def features_subject(pipeline: PipelineSettings, data: str) -> dict[str, str]:
    """Return what the receipt of the feature frame is about."""
    workload = pipeline.loaded_workload
    rules = _rules(
        workload.feature_schema,
        workload.feature_expectations,
        pipeline.poc.look_ahead.model_dump(mode="json"),
    )
    return {"data": data, "rules": rules, "maker": maker(pipeline)}


def candidate_subject(pipeline: PipelineSettings, data: str) -> dict[str, str]:
    """Return what determines a candidate: data, config and code."""
    return {
        "data": data,
        "config": pipeline.config_digest,
        "code": code_digest(pipeline.loaded_workload, pipeline.model),
    }


def poc_subject(pipeline: PipelineSettings, data: str) -> dict[str, str]:
    """Return what the receipt of the POC gate is about."""
    checks = [check.name for check in CHECKS]
    rules = digest_json([checks, pipeline.poc.model_dump(mode="json")])
    return candidate_subject(pipeline, data) | {"rules": rules}


def search_subject(pipeline: PipelineSettings, data: str) -> dict[str, str]:
    """Return what the receipt of the search is about: what it started from, and how it went on.

    The machines it ran on decide nothing; a GPU and a processor do not give the same bits.
    """
    plan = [
        pipeline.search.model_dump(mode="json") if pipeline.search else None,
        _ordered(pipeline.space) if pipeline.space else None,
        pipeline.search is not None and pipeline.compute.gpus_per_worker > 0,
        # Another version decides otherwise: it begins a search of its own beside the old one.
        search_code() if pipeline.search else None,
    ]
    return candidate_subject(pipeline, data) | {"rules": digest_json(plan)}


def _ordered(space: Space) -> list[object]:
    """Return the parameters as a list: their order counts, and JSON objects have none."""
    return [[path, p.model_dump(mode="json")] for path, p in space.parameters.items()]


def maker(pipeline: PipelineSettings) -> str:
    """Return the digest of the workload, its settings and its code: what makes features."""
    return digest_json(
        {
            "workload": pipeline.workload,
            "settings": pipeline.config["workload_settings"],
            "code": code_digest(pipeline.loaded_workload),
        }
    )


def require_same(what: str, *, made_for: str, now: str, remedy: str) -> None:
    """Refuse a stored value that belongs to something else than the present.

    Raises:
        GateBlocked: The digests differ.
    """
    if made_for != now:
        raise GateBlocked(
            f"{what} must belong to what is asked for now ({short(now)}), and belongs to "
            f"{short(made_for)}.",
            cause="Settings, code or data changed since it was made.",
            fix=remedy,
        )


def _rules(schema: Schema, expectations: tuple[Expectation, ...], *more: object) -> str:
    declared = [e.model_dump(mode="json") for e in expectations]
    return digest_json([schema.model_dump(mode="json"), declared, *more])
