"""The gate's report as strict JSON, and its published JSON schema.

JSON has no NaN and no infinity, which occur in the numbers of failed checks. They are printed as
the strings "NaN", "Infinity" and "-Infinity".
"""

import json
from typing import Any

from sluice.eventlog.event_lines import encode_numbers
from sluice.failfast.result import GateReport

SCHEMA_VERSION = "2.2"
"""The minor version changes when fields are added, the major version on breaking changes."""

_NUMBER = "#/$defs/Number"


def report_json(report: GateReport) -> str:
    """Return the output of ``sluice poc --json``: strict JSON that conforms to the schema.

    The schema version, the outcome and its reason are added to the fields of the report.
    """
    document = {
        "version": SCHEMA_VERSION,
        "outcome": report.outcome,
        "passed": report.passed,
        "reason": report.reason,
        **report.model_dump(),
    }
    return json.dumps(encode_numbers(document), indent=2, allow_nan=False)


def poc_report_schema() -> dict[str, Any]:
    """Return the JSON schema of ``report_json``, as published in docs/schemas.

    Regenerate it with ``sluice poc --schema > docs/schemas/poc-report.schema.json``.
    """
    report = _printed_schema(GateReport.model_json_schema(mode="serialization"))
    added_properties = {
        "version": {"const": SCHEMA_VERSION, "description": "Version of this schema."},
        "outcome": {
            "enum": ["pass", "fail", "insufficient"],
            "description": "Outcome of the gate. 'insufficient': no check failed, but the evidence "
            "does not suffice.",
        },
        "passed": {"type": "boolean", "description": "Whether training may start."},
        "reason": {
            "type": "string",
            "description": "Result of the first blocking check, or that no check blocks.",
        },
    }
    number = {
        "description": "A number; a non-finite number is a string.",
        "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Output of 'sluice poc --json'",
        "version": SCHEMA_VERSION,
        **report,
        "required": [*added_properties, *report["required"]],
        "properties": added_properties | report["properties"],
        "$defs": report["$defs"] | {"Number": number},
    }


def _printed_schema(schema_node: Any) -> Any:
    """Convert a pydantic schema of the values to a schema of the printed JSON.

    A number may be a string, fields with a default are always printed, and titles that only
    repeat the field names are dropped.
    """
    if isinstance(schema_node, list):
        return [_printed_schema(item) for item in schema_node]
    if not isinstance(schema_node, dict):
        return schema_node
    schema = {k: v for k, v in schema_node.items() if k not in ("default", "title")}
    if schema.get("type") == "number":
        del schema["type"]
        schema["$ref"] = _NUMBER
    if isinstance(schema.get("properties"), dict):
        schema["required"] = list(schema["properties"])
    return {key: _printed_schema(value) for key, value in schema.items()}
