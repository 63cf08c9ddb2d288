"""A decision stands for the rules it was made under; nothing moves under others."""

from sluice.errors import GateBlocked
from sluice.pipeline import PipelineSettings
from sluice.registry.ledger import Ledger


def require_present_rules(pipeline: PipelineSettings, ledger: Ledger, number: int) -> None:
    """Refuse a version that was judged under other settings of gate, guards or suites than now."""
    verdict = ledger.verdict(pipeline.name, number)
    if verdict is not None and verdict.subject.get("rules") != pipeline.promotion_rules:
        raise GateBlocked(
            f"{pipeline.name} version {number} was judged under other settings of gate, guards or "
            "suites than the pipeline has now.",
            cause="The file was changed after the decision, which stands for its window.",
            fix="Run the pipeline on a newer window, or put the settings back.",
        )
