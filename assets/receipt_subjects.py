"""Subjects of the receipts: the digests of data, config, code and rules that a receipt applies to.

Rules are the checks and their settings, or the settings and code of the search. Later stages
compare the digests with the current ones. They do not accept a receipt with other digests, and do
not use a stored value that other settings or code produced.
"""

from sluice.base.digests import digest_json, short
from sluice.base.errors import GateBlocked
from sluice.config.poc_settings import LookAheadSettings, PocSettings
from sluice.config.resolved import SearchInputs, TrainingInputs
from sluice.data.expectations import Expectation
from sluice.data.schema import Schema
from sluice.failfast.gate.checks import CHECKS
from sluice.training.code import code_digest
from sluice.tuning.code import search_code
from sluice.tuning.spaces import Space
from sluice.workloads.workload import Workload


def raw_subject(workload: Workload, data_digest: str) -> dict[str, str]:
    """Return the subject of the raw data receipt."""
    return {
        "data": data_digest,
        "rules": _digest_table_rules(workload.raw_schema, workload.raw_expectations),
    }


def features_subject(
    workload: Workload, data_digest: str, *, path: str, look_ahead: LookAheadSettings
) -> dict[str, str]:
    """Return the subject of the feature receipt."""
    rules = _digest_table_rules(
        workload.feature_schema,
        workload.feature_expectations,
        look_ahead.model_dump(mode="json"),
    )
    return {"data": data_digest, "rules": rules, "maker": feature_producer(workload, path=path)}


def candidate_subject(inputs: TrainingInputs, data_digest: str) -> dict[str, str]:
    """Return the digests that determine a candidate: data, config and code."""
    return {
        "data": data_digest,
        "config": inputs.config_digest,
        "code": code_digest(inputs.workload, inputs.model),
    }


def poc_subject(inputs: TrainingInputs, poc: PocSettings, data_digest: str) -> dict[str, str]:
    """Return the subject of the proof-of-concept receipt."""
    checks = [check.name for check in CHECKS]
    rules = digest_json([checks, poc.model_dump(mode="json")])
    return candidate_subject(inputs, data_digest) | {"rules": rules}


def search_subject(inputs: SearchInputs, data_digest: str) -> dict[str, str]:
    """Return the subject of the search receipt: the candidate's digests and the search settings.

    The number and type of the machines are not included. Whether trials use GPUs is included,
    because GPU and CPU results are not bitwise identical.
    """
    search_rules = [
        inputs.search.model_dump(mode="json") if inputs.search else None,
        _parameter_list(inputs.file_space) if inputs.file_space else None,
        inputs.search is not None and inputs.compute.gpus_per_worker > 0,
        # Changed search code may select other trials, so it starts a separate search.
        search_code() if inputs.search else None,
    ]
    return candidate_subject(inputs.base, data_digest) | {"rules": digest_json(search_rules)}


def _parameter_list(space: Space) -> list[object]:
    """Return the parameters as a list: their order matters, and a JSON object has no order."""
    return [[path, p.model_dump(mode="json")] for path, p in space.parameters.items()]


def feature_producer(workload: Workload, *, path: str) -> str:
    """Return the digest of everything that produces features: workload, its settings and code."""
    return digest_json(
        {
            "workload": path,
            "settings": workload.settings.model_dump(mode="json"),
            "code": code_digest(workload),
        }
    )


def require_same(what: str, *, made_for: str, current: str, remedy: str) -> None:
    """Raise an error unless the digest of an input of a stage equals the expected digest.

    Raises:
        GateBlocked: The digests differ.
    """
    if made_for != current:
        raise GateBlocked(
            f"{what} must have the digest {short(current)}, but the stored digest is "
            f"{short(made_for)}.",
            cause="An earlier stage was materialized with other settings, code or data.",
            fix=remedy,
        )


def _digest_table_rules(
    schema: Schema, expectations: tuple[Expectation, ...], *further_rules: object
) -> str:
    expectation_rules = [e.model_dump(mode="json") for e in expectations]
    return digest_json([schema.model_dump(mode="json"), expectation_rules, *further_rules])
