"""Sluice: a gated line from data to a served PyTorch model.

The names below are the public interface of Sluice. They change only with a new major version, and
are imported on first access.

==================  ==============================================================================
``check``           POC gate: finds in seconds what would ruin a long training
``fit``             trains one network for each seed and fold
``evaluate``        losses of a trained model and of its baseline on the test rows
``compare``         promotion gate: is the candidate better than the baseline?
``trace``           traces a training in a ``with`` block and names its faults
``Registry``        versions of models: register, promote, rollback, history
``serve``           serves the production model over HTTP
``workload_of_frame``  a workload for a data frame, without a class of your own
==================  ==============================================================================
"""

__version__ = "0.1.0"

# Nothing is imported here: ``python -m sluice`` runs this module while the working folder still
# comes first on the path, where a typing.py of the user's would be taken for the standard one.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from sluice.api.cohort import CohortComparison
    from sluice.api.compare import compare
    from sluice.api.comparison import Comparison
    from sluice.api.evaluate import EvaluatedModel, evaluate
    from sluice.api.fit import FittedModel, fit
    from sluice.api.registry import ProductionModel, Registry
    from sluice.api.serve import serve
    from sluice.cluster.settings import ComputeSettings
    from sluice.config.poc_settings import PocSettings
    from sluice.data.folds import FoldSettings
    from sluice.evaluation.settings import GateSettings
    from sluice.failfast.gate.in_script import check
    from sluice.failfast.result import GateReport
    from sluice.models.settings import ModelSettings
    from sluice.trace.block import TracedBlock, trace
    from sluice.trace.settings import TraceSettings
    from sluice.training.settings import TrainSettings
    from sluice.verdicts.verdict import Verdict
    from sluice.workloads.frame import workload_of_frame
    from sluice.workloads.workload import Workload, WorkloadSettings

_MODULES = {
    "CohortComparison": "sluice.api.cohort",
    "Comparison": "sluice.api.comparison",
    "ComputeSettings": "sluice.cluster.settings",
    "EvaluatedModel": "sluice.api.evaluate",
    "FittedModel": "sluice.api.fit",
    "FoldSettings": "sluice.data.folds",
    "GateReport": "sluice.failfast.result",
    "GateSettings": "sluice.evaluation.settings",
    "ModelSettings": "sluice.models.settings",
    "PocSettings": "sluice.config.poc_settings",
    "ProductionModel": "sluice.api.registry",
    "Registry": "sluice.api.registry",
    "TraceSettings": "sluice.trace.settings",
    "TracedBlock": "sluice.trace.block",
    "TrainSettings": "sluice.training.settings",
    "Verdict": "sluice.verdicts.verdict",
    "Workload": "sluice.workloads.workload",
    "WorkloadSettings": "sluice.workloads.workload",
    "check": "sluice.failfast.gate.in_script",
    "compare": "sluice.api.compare",
    "evaluate": "sluice.api.evaluate",
    "fit": "sluice.api.fit",
    "serve": "sluice.api.serve",
    "workload_of_frame": "sluice.workloads.frame",
}
_COMPONENTS = {"ModelPipeline": "sluice.pipelines.component"}
"""Not in ``__all__``: they need the extra ``pipeline``, and ``dg`` finds them by an entry point."""

__all__ = [
    "CohortComparison",
    "Comparison",
    "ComputeSettings",
    "EvaluatedModel",
    "FittedModel",
    "FoldSettings",
    "GateReport",
    "GateSettings",
    "ModelSettings",
    "PocSettings",
    "ProductionModel",
    "Registry",
    "TraceSettings",
    "TracedBlock",
    "TrainSettings",
    "Verdict",
    "Workload",
    "WorkloadSettings",
    "check",
    "compare",
    "evaluate",
    "fit",
    "serve",
    "trace",
    "workload_of_frame",
]


def __getattr__(name: str) -> object:
    import importlib

    if name == "trace":  # the package itself, which can be called: see sluice/trace/__init__.py
        return importlib.import_module("sluice.trace")
    module = _MODULES.get(name) or _COMPONENTS.get(name)
    if module is not None:
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_COMPONENTS})
