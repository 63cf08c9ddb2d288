"""The page about the checks of the POC gate."""

from sluice.bench.documentation import markdown
from sluice.bench.poc.defects import DEFECTS
from sluice.config.poc_settings import TimeLimits
from sluice.failfast.gate.checks import CHECKS
from sluice.failfast.gate.timing import (
    WHOLE_GATE_CHECK,
    WHOLE_GATE_CHECK_ID,
    WHOLE_GATE_DESCRIPTION,
)


def check_page() -> dict[str, str]:
    """Return the text of the page about checks, by its path in the documentation."""
    time_limits = TimeLimits()
    defects_by_check: dict[str, list[str]] = {}
    for defect in DEFECTS:
        defects_by_check.setdefault(defect.check, []).append(defect.name)
    paragraphs = [
        "# Checks of the POC gate",
        f"{len(CHECKS) + 1} checks run in this order before a training. A check is named by a "
        "statement that is true when it passes. It is skipped if a check that it needs did not "
        "pass. Its findings are described in the [fault catalogue](../faults/README.md). "
        "The planted defects of a check are those of `sluice bench poc` that this check must be "
        "the first to report. `sluice explain CHECK_NAME` prints the description of a check.",
    ]
    for check in CHECKS:
        limit = check.select_limit(time_limits)
        needs = ", ".join(f"`{name}`" for name in check.needs) or "nothing"
        level = "minimum and full" if "minimum" in check.levels else "full"
        defects = defects_by_check.get(check.name, [])
        paragraphs += [
            f"## `{check.name}`",
            check.description,
            f"Identifier `{check.check_id}`; gate level: {level}; needs {needs}; warns after "
            f"{limit.typical_s:g} s and fails after {limit.max_s:g} s.",
            f"{len(defects)} planted {'defect' if len(defects) == 1 else 'defects'}"
            + (f": {'; '.join(defects)}." if defects else "."),
        ]
    whole_gate = time_limits.whole_gate
    paragraphs += [
        f"## `{WHOLE_GATE_CHECK}`",
        WHOLE_GATE_DESCRIPTION,
        f"Identifier `{WHOLE_GATE_CHECK_ID}`; gate level: minimum and full; warns after "
        f"{whole_gate.typical_s:g} s and fails after {whole_gate.max_s:g} s.",
    ]
    return {"checks/README.md": markdown.page(*paragraphs)}
