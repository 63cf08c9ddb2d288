"""The pages about metrics and about events of logs."""

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from sluice.bench.documentation import markdown
from sluice.eventlog.event_fields import END_EVENTS, EVENT_FIELDS
from sluice.metrics import directions

_TOPICS = (
    *("regression", "classification", "calibration", "ranking", "detection", "generation"),
    "trading",
)


def metric_page() -> dict[str, str]:
    """Return the text of the page about metrics, by its path in the documentation."""
    paragraphs = [
        "# Metrics",
        "Metrics are functions of arrays in `sluice.metrics`. Call them in `Workload.metrics`. "
        "Most return a `TaskMetrics`: return its `numbers`. A metric that is undefined on the "
        "given rows is NaN in `numbers`, never 0; `absent` contains its name and the reason. The "
        "other functions return a number or an array.",
        "A metric is used by its name in `guards.metrics`, `guards.limits` and "
        "`headline_metric`. For the names below, Sluice knows whether higher or lower is better. "
        "Declare it for other names in `metric_directions` of the workload. A suffix after `@`, as "
        "in `ndcg@10`, is ignored.",
        markdown.table(
            ("better if", "metrics"),
            [
                (direction, ", ".join(f"`{name}`" for name in _metric_names(direction)))
                for direction in ("higher", "lower")
            ],
        ),
    ]
    for topic in _TOPICS:
        module = import_module(f"sluice.metrics.{topic}")
        paragraphs.append(f"## {markdown.title(topic)}")
        paragraphs.append(_first_paragraph(module))
        rows = [
            (f"`{module.__name__}.{name}`", _argument_list(function), _first_paragraph(function))
            for name, function in _public_functions(module)
        ]
        paragraphs.append(markdown.table(("function", "arguments", "returns"), rows))
    return {"reference/metrics.md": markdown.page(*paragraphs)}


def event_page() -> dict[str, str]:
    """Return the text of the page about events, by its path in the documentation."""
    rows = [
        (
            f"`{event}`",
            ", ".join(f"`{name}` ({kind})" for name, kind in fields.items()),
            " or ".join(f"`{end}`" for end in END_EVENTS.get(event, ())),
        )
        for event, fields in EVENT_FIELDS.items()
    ]
    return {
        "reference/events.md": markdown.page(
            "# Events of a log",
            "Trainings and gates write one JSON object per line (NDJSON) with `event`, "
            "`timestamp` and the fields below; other fields are allowed. `sluice poc --log FILE` "
            "validates a log of any program.",
            markdown.table(("event", "required fields", "ended by"), rows),
            "`fold_complete` also has the metrics of the workload as `test_*`. "
            "`experiment_complete` also has the workload's headline metric as `mean_*`. After a "
            "crash, the event that ends an interval is missing, and the last line may be "
            "incomplete. Both are reported, but not as errors.",
        )
    }


def _metric_names(direction: str) -> Iterator[str]:
    names = [*directions._HIGHER_IS_BETTER, *directions._LOWER_IS_BETTER]
    return (name for name in names if directions.direction_of(name, {}) == direction)


def _public_functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(module).items():
        is_defined_here = inspect.isfunction(value) and value.__module__ == module.__name__
        if is_defined_here and not name.startswith("_"):
            yield name, value


def _argument_list(function: Callable[..., Any]) -> str:
    return ", ".join(f"`{name}`" for name in inspect.signature(function).parameters)


def _first_paragraph(described: object) -> str:
    return " ".join((inspect.getdoc(described) or "").partition("\n\n")[0].split())
