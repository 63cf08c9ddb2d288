"""The committed reference pages equal the pages that the code generates (TRACE-16)."""

import re
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from pydantic import BaseModel, Field

from sluice.base.errors import ContractError
from sluice.bench.documentation.command_pages import command_page
from sluice.bench.documentation.error_rates import ErrorRates, FaultRates, describe_rates
from sluice.bench.documentation.markdown import settings_rows, table
from sluice.bench.documentation.metric_pages import event_page, metric_page
from sluice.bench.documentation.rule_pages import MAX_EXAMPLE_LINES, topic_and_name
from sluice.bench.documentation.setting_pages import Section, add_sections, settings_table
from sluice.bench.documentation.writer import generated_pages, stored_pages, write_pages
from sluice.bench.tracer.result import ReportedCause, RunResult
from sluice.cli.app import build_app
from sluice.eventlog.event_fields import EVENT_FIELDS
from sluice.findings.catalogue import CATALOGUE
from sluice.trace.report.trace_report import report_traces
from sluice.trace.rules.library import RANK_RULES, RULES
from tests.support.traced.run_examples import run_example

DOCS = Path(__file__).parents[4] / "docs"
ALL_RULES = (*RULES, *RANK_RULES)
NO_EXAMPLE = {"unstable_adam_moments"}
"""Rules whose fault needs a program that is too long for an example."""


def example_path(rule):
    topic, name = topic_and_name(rule)
    return DOCS / "rules" / topic / f"{name}.py"


EXAMPLES = [rule for rule in ALL_RULES if topic_and_name(rule)[1] not in NO_EXAMPLE]


def test_committed_pages_equal_the_generated_ones():
    """If this fails, run 'sluice bench docs docs'."""
    assert stored_pages(DOCS) == generated_pages(DOCS, build_app())


def anchors_of(text):
    """Return the names of explicit anchors and the slugs of headings of a Markdown text."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return {*re.findall(r'<a id="([^"]+)"></a>', text), *slugs}


def test_every_link_between_the_pages_has_a_target():
    pages = stored_pages(DOCS)
    for path, text in pages.items():
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)]+)\)", prose):
            target, _, anchor = link.partition("#")
            found = (DOCS / path).parent.joinpath(target).resolve() if target else DOCS / path
            assert found.is_file(), (path, link)
            assert not anchor or anchor in anchors_of(found.read_text()), (path, link)


@pytest.mark.parametrize("name", CATALOGUE)
def test_each_fault_has_a_section_on_the_page_of_its_topic(name):
    fault = CATALOGUE[name]

    assert f'<a id="{fault.id}"></a>' in (DOCS / "faults" / f"{fault.topic}.md").read_text()


def test_outdated_pages_are_removed_and_changed_ones_written(tmp_path):
    for path in (*DOCS.glob("rules/*/*.py"), DOCS / "rules" / "error_rates.json"):
        copy = tmp_path / path.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "rules" / "gone.md").write_text("A rule that no longer exists.")

    changed = write_pages(tmp_path, build_app())

    assert set(changed) == {*generated_pages(DOCS, build_app()), "rules/gone.md"}
    assert stored_pages(tmp_path) == stored_pages(DOCS)
    assert write_pages(tmp_path, build_app()) == ()


def test_every_example_belongs_to_a_rule_and_is_short():
    assert sorted(DOCS.glob("rules/*/*.py")) == sorted(map(example_path, EXAMPLES))
    for rule in EXAMPLES:
        assert len(example_path(rule).read_text().splitlines()) <= MAX_EXAMPLE_LINES, rule.name


@pytest.mark.slow
@pytest.mark.parametrize("rule", EXAMPLES, ids=lambda rule: topic_and_name(rule)[1])
def test_example_has_the_fault_of_its_rule(rule, tmp_path):
    program = example_path(rule)
    run_example(program, tmp_path / "t", ranks=2 if program.parent.name == "distributed" else 1)

    reports = report_traces(tmp_path / "t")

    found = {f.rule for report in reports for d in report.diagnoses for f in d.findings}
    assert rule.name in found


def make_run(*faults, kind="fault", **fields):
    defaults = {
        "number": 33,
        "name": "dead ReLU",
        "kind": kind,
        "net": "mlp",
        "seed": 100,
        "right": ("dead units",) if kind == "fault" else (),
        "needs": "error",
        "starts_at": 5,
        "within": 3,
        "steps": 100,
        "seconds": 1.0,
        "answers": tuple(
            ReportedCause(
                fault=fault, severity=severity, step=5, confidence=0.9, what="", explains=()
            )
            for fault, severity in faults
        ),
    }
    return RunResult(**(defaults | fields))


DEAD, HIGH = ("dead units", "error"), ("learning rate too high", "error")


def test_error_rates_count_detections_and_false_alarms():
    runs = [
        make_run(DEAD),
        make_run(HIGH, DEAD),
        make_run(HIGH),
        make_run(DEAD, failed="time limit"),
        make_run(DEAD, ("overfitting", "warning"), kind="twin"),
        make_run(kind="healthy"),
    ]

    rates = ErrorRates.of(runs, commit="abc")

    assert rates.faults["dead units"] == FaultRates(planted=3, caught=2, first=1, false_errors=1)
    assert rates.faults["overfitting"] == FaultRates(false_others=1)
    assert (rates.faulty_runs, rates.healthy_runs, rates.failed_runs) == (3, 2, 1)
    assert (rates.seeds, rates.commit) == ((100,), "abc")


def test_results_without_a_fault_are_rejected():
    with pytest.raises(ContractError, match="no run with a fault"):
        ErrorRates.of([make_run(kind="healthy")], commit="abc")


def test_fault_without_runs_is_described_as_not_measured():
    rates = ErrorRates.of([make_run(DEAD), make_run(kind="healthy")], commit="abcdefgh")

    assert "Detection was not measured" in describe_rates(rates, "overfitting")
    assert "Reported in 1 of 1 (100.0%" in describe_rates(rates, "dead units")
    assert "at commit abcdefg." in describe_rates(rates, "dead units")


def test_thresholds_are_listed_with_their_range():
    rows = {name: rest for rule in ALL_RULES for name, *rest in settings_rows(rule.settings)}

    assert rows["`min_clipped_share`"][:2] == ["0.98", "number, above 0 and at most 1"]
    assert rows["`jump.min_losses`"][:2] == ["16", "integer, at least 1"]
    assert rows["`standardized_std_range`"][:2] == ["0.6, 1.6", "pair of numbers"]


def test_vertical_bar_in_a_table_cell_is_escaped():
    assert table(("a",), [("x|y",)]).splitlines()[-1] == "| x\\|y |"


def test_settings_are_described_with_type_default_and_limits():
    class Inner(BaseModel):
        """Keys of the inner group."""

        size: int = Field(3, ge=1, lt=9, description="Number of things.")

    class Outer(BaseModel):
        kind: Literal["outer"] = "outer"
        inner: Inner = Inner()
        names: tuple[str, ...] = Field(("a", "b"), min_length=1)
        rate: float | None = Field(None, gt=0)

    found: list[Section] = []
    add_sections(Section("group", Outer), found)
    outer, inner = (settings_table(section.model, found) for section in found)

    assert [section.heading for section in found] == ["`group`: kind `outer`", "`group.inner`"]
    assert "| `size` | `3` | integer, at least 1 and below 9 | Number of things. |" in inner
    assert "[keys](#groupinner) | Keys of the inner group. |" in outer
    assert "| `names` | `[a, b]` | list of text, at least 1 long |" in outer
    assert "| `rate` | none | number or null, above 0 |" in outer


def test_commands_are_described_with_their_options_and_example():
    app = typer.Typer()
    group = typer.Typer(name="outer", help="A group.", epilog="Example: sluice outer")

    @group.command("inner")
    def inner(
        name: str,
        way: Annotated[Literal["up", "down"], typer.Option(help="Which way.")] = "up",
        again: Annotated[bool, typer.Option("--again", help="Once more.")] = False,
    ) -> None:
        """Do it.

        Example: sluice outer inner x --again
        """

    @group.command("secret", hidden=True)
    def secret(depth: Annotated[int, typer.Option(help="How deep.")] = 2) -> None:
        pass

    app.add_typer(group)
    page = command_page(app)["reference/commands.md"]

    assert "## `sluice outer inner`\n\nDo it.\n\n```bash\nsluice outer inner x --again\n```" in page
    assert "| `NAME` | required |  |" in page
    assert "| `--way up\\|down` | `up` | Which way. |" in page
    assert "| `--again` |  | Once more. |" in page
    assert "| `--depth INTEGER` | `2` | How deep. |" in page
    assert "secret" not in page


def test_every_metric_with_a_direction_and_every_event_are_listed():
    metrics, events = metric_page()["reference/metrics.md"], event_page()["reference/events.md"]

    assert "`rmse`" in metrics
    assert "`sluice.metrics.classification.classification_metrics`" in metrics
    assert all(f"| `{event}` |" in events for event in EVENT_FIELDS)
