"""Templates of a pipeline on a table: its class, its pipeline file and its test."""

import json

from sluice.base.pluralize import pluralize
from sluice.evaluation.settings import GateSettings
from sluice.scaffold.code import class_name, comment, flow_mapping, join_lines, with_comment
from sluice.scaffold.guesses import FIRST_FOLDS, TableGuess
from sluice.scaffold.project import COMPONENT, PipelineNames
from sluice.scaffold.table_columns import quote

_MIN_EPOCHS, _MAX_EPOCHS = 4, 30
_MAX_ROWS_PER_FOLD_RUN = 3_000_000
"""Maximum number of rows over all epochs of a fold run. It limits the number of epochs, so that a
fold run of the first run takes about one minute."""


def table_files(guess: TableGuess, names: PipelineNames) -> dict[str, str]:
    """Return the contents of the pipeline file, the code and the test, by file name."""
    return {
        names.pipeline_file: _format_pipeline(guess, names),
        names.code_file: _format_code(guess, names),
        names.test_file: _format_test(names),
    }


def _format_code(guess: TableGuess, names: PipelineNames) -> str:
    kinds = sorted({column.kind for column in guess.inputs})
    return join_lines(
        [
            f'"""Predicts {_one_line(guess.target)} from columns of {_one_line(guess.data)}."""',
            "",
            f"from sluice.workloads.columns import {', '.join(kinds)}",
            "from sluice.workloads.table import TableWorkload",
            "",
            "",
            f"class {class_name(names.name)}(TableWorkload):",
            f'    """One row of {_one_line(guess.data)}. Comments state the reason of each guess; '
            'edit what is wrong."""',
            "",
            with_comment(
                f'task = "{guess.task.value}"',
                f"The target has {guess.task.reason}.",
                indent=4,
            ),
            *(comment(note, indent=4) for note in guess.target_notes),
            f"    target_column = {quote(guess.target)}",
            _format_classes(guess.classes),
            *_format_index_kind(guess),
            *_format_repeated_labels(guess),
            *_format_repeated_inputs(guess),
            "",
            "    inputs = (",
            *(with_comment(f"{column.code},", column.reason, indent=8) for column in guess.inputs),
            "    )",
            *([comment("Left out:", indent=4)] if guess.left_out else []),
            *(
                comment(f"- {_one_line(column.name)}: {column.reason}", indent=4)
                for column in guess.left_out
            ),
        ]
    )


def _format_index_kind(guess: TableGuess) -> list[str]:
    if guess.index_kind in (None, "datetime"):
        return []
    return [with_comment(f'index_kind = "{guess.index_kind}"', "The times are numbers.", indent=4)]


def _format_repeated_labels(guess: TableGuess) -> list[str]:
    if not guess.has_repeated_times:
        return []
    name = "date" if guess.index_kind == "datetime" else "time"
    reason = f"Several rows have the same {name}. All rows of a {name} are in the same split."
    return [with_comment("repeated_labels = True", reason, indent=4)]


def _format_repeated_inputs(guess: TableGuess) -> list[str]:
    if not guess.has_repeated_inputs:
        return []
    reason = (
        "Many rows have equal inputs. They are separate observations, not copies, and are "
        "distributed over train, validation and test rows."
    )
    return [with_comment("repeated_inputs = True", reason, indent=4)]


def _format_classes(classes: tuple[str, ...]) -> str | None:
    if not classes:
        return None
    return with_comment(
        f"classes = ({', '.join(map(quote, classes))})",
        "The index of a label in this tuple is its class number.",
        indent=4,
    ).rstrip(",")


def _format_pipeline(guess: TableGuess, names: PipelineNames) -> str:
    has_time_order = guess.order.value == "time"
    folds = flow_mapping({**FIRST_FOLDS, "embargo_rows": 1 if has_time_order else 0})
    source = {"kind": guess.source["kind"], "uri": guess.data, **guess.source}
    purpose = f"Predicts {_one_line(guess.target)} from the columns of {_one_line(guess.data)}."
    batch_rows = 64 if guess.num_rows < 4_000 else 128 if guess.num_rows < 20_000 else 512
    folds_reason = (
        "The target of a row counts as known one row later (horizon 1), so one row between train "
        "and test rows is left out. If the target is known later, raise embargo_rows."
        if has_time_order
        else "Rows are independent (horizon 0), so no row between train and test rows is left out."
    )
    epochs = max(_MIN_EPOCHS, min(_MAX_EPOCHS, _MAX_ROWS_PER_FOLD_RUN // guess.num_rows))
    few_epochs_note = (
        f"Only {epochs} epochs, so that the first run is quick. Raise max_epochs for a better "
        "model."
    )
    training = {
        "max_epochs": epochs,
        "patience_epochs": 6,
        "learning_rate": 0.003,
        "batch_rows": batch_rows,
    }
    num_test = int(guess.num_rows * (1 - FIRST_FOLDS["first_test_share"]))
    if num_test < GateSettings().min_rows:
        folds_reason += (
            f" About {num_test} test rows are fewer than gate.min_rows, {GateSettings().min_rows}, "
            "so the first verdict is INCONCLUSIVE."
        )
    index_hint = (
        " Set index to null if the rows are independent."
        if has_time_order
        else " If a column contains the times of the rows in another format, set index to its name."
    )
    poc_lines = None
    if guess.max_duplicate_share is not None:
        poc_lines = (
            f"{comment(guess.max_duplicate_share.reason, indent=2)}\n"
            f"  poc: {{max_duplicate_share: {guess.max_duplicate_share.value}}}"
        )
    return join_lines(
        [
            f"# Written by '{names.written_by}' from {pluralize(guess.num_rows, 'row')} of "
            f"{_one_line(guess.data)}. Run it with: {names.run_with}",
            f"type: {COMPONENT}",
            "",
            "attributes:",
            f"  name: {names.name}",
            f"  description: {json.dumps(purpose, ensure_ascii=False)}",
            "",
            f"  workload: {names.module}:{class_name(names.name)}",
            "  workload_settings:",
            comment(guess.order.reason + index_hint, indent=4),
            f"    source: {flow_mapping(source)}",
            comment(
                "Half of the rows precede the first test rows, which is enough for a first result. "
                "More folds retrain more often, and take longer. " + folds_reason,
                indent=4,
            ),
            f"    folds: {folds}",
            "",
            poc_lines,
            comment(
                "A small network with a linear path. The promotion gate compares the network with "
                "the best simple rule, which may be a linear or logistic regression.",
                indent=2,
            ),
            "  model: {architecture: mlp, hidden: 64, layers: 1, dropout: 0.1}",
            comment(few_epochs_note, indent=2) if epochs < _MAX_EPOCHS else None,
            f"  training: {flow_mapping(training)}",
            comment(
                "Five networks per fold, the minimum of the promotion gate. More seeds detect "
                "smaller gains.",
                indent=2,
            ),
            "  seeds: [0, 1, 2, 3, 4]",
        ]
    )


def _format_test(names: PipelineNames) -> str:
    return f'''"""Tests of {names.code_file}: run them with 'pytest {names.test_file}'."""

from pathlib import Path

import pytest

from sluice.config.pipeline import read_pipeline
from sluice.config.resolved import resolve

WORKLOAD = resolve(read_pipeline(Path(__file__).with_name("{names.pipeline_file}"))).workload


@pytest.fixture(scope="module")
def raw():
    return WORKLOAD.load_rows()


def test_every_row_with_a_target_has_complete_features(raw):
    frame = WORKLOAD.compute_features(raw)

    assert 0 < len(frame) <= len(raw)
    assert not frame.isna().any().any()
    assert frame.index.is_monotonic_increasing


def test_features_do_not_depend_on_later_rows(raw):
    early = raw.iloc[: len(raw) // 2]

    frame = WORKLOAD.compute_features(early)

    whole = WORKLOAD.compute_features(raw)
    assert frame.equals(whole.iloc[: len(frame)])


def test_train_rows_precede_test_rows(raw):
    folds = WORKLOAD.plan_folds(WORKLOAD.compute_features(raw))

    assert all(fold.train.stop <= fold.val.start <= fold.test.start for fold in folds)
'''


def _one_line(text: str) -> str:
    """Return a text on one line, without double quotes and backslashes, for generated code."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())
