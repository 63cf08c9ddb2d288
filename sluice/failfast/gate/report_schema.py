"""The gate's report as strict JSON, and the published schema of it.

JSON has no NaN and no infinity, and numbers of a failed check may be either. They are printed as
the strings "NaN", "Infinity" and "-Infinity".
"""

import json
from typing import Any

from sluice.eventlog.event_lines import encode_numbers
from sluice.failfast.result import GateReport

SCHEMA_VERSION = "1.0"
"""Second part: fields were added. First part: a reader of the one before may stumble."""

_NUMBER = "#/$defs/Number"


def report_json(report: GateReport) -> str:
    """Return what ``sluice poc --json`` prints: strict JSON that holds to the schema.

    The verdict and its reason stand beside the fields of the report, so that nobody has to work
    them out again.
    """
    found = {
        "version": SCHEMA_VERSION,
        "outcome": report.outcome,
        "passed": report.passed,
        "reason": report.reason,
        **report.model_dump(),
    }
    return json.dumps(encode_numbers(found), indent=2, allow_nan=False)


def poc_report_schema() -> dict[str, Any]:
    """Return the JSON schema of ``report_json``, as published in docs/schemas.

    Write it again with ``sluice poc --schema > docs/schemas/poc-report.schema.json``.
    """
    report = _printed(GateReport.model_json_schema(mode="serialization"))
    added = {
        "version": {"const": SCHEMA_VERSION, "description": "Of this schema."},
        "outcome": {"enum": ["pass", "fail", "insufficient"], "description": "The verdict."},
        "passed": {"type": "boolean", "description": "Training may start."},
        "reason": {"type": "string", "description": "What blocks, or that nothing does."},
    }
    number = {
        "description": "A number; one that is not finite is a string.",
        "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What 'sluice poc --json' prints",
        "version": SCHEMA_VERSION,
        **report,
        "required": [*added, *report["required"]],
        "properties": added | report["properties"],
        "$defs": report["$defs"] | {"Number": number},
    }


def _printed(part: Any) -> Any:
    """Turn a schema of the values into one of what is printed.

    A number may be a string, nothing is left out because it has a default, and the titles that
    only repeat the names of fields are dropped.
    """
    if isinstance(part, list):
        return [_printed(item) for item in part]
    if not isinstance(part, dict):
        return part
    kept = {k: v for k, v in part.items() if k not in ("default", "title")}
    if kept.get("type") == "number":
        del kept["type"]
        kept["$ref"] = _NUMBER
    if isinstance(kept.get("properties"), dict):
        kept["required"] = list(kept["properties"])
    return {key: _printed(value) for key, value in kept.items()}
