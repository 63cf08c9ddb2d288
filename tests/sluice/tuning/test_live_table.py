"""The live table of a running search fits the terminal width and names omitted columns."""

import pytest

from sluice.tuning.live_table import live_rows, short_names, table_cells, table_text
from sluice.tuning.records import EpochLosses, ScheduleStep, TrialRecord

LR = "training.learning_rate"


def make_trial(number, losses, state="running", **params):
    epochs = tuple(
        EpochLosses(epoch=e, train_loss=x, val_loss=x, kept_loss=x)
        for e, x in enumerate(losses, start=1)
    )
    all_params = {LR: 0.01} | {name.replace("__", "."): value for name, value in params.items()}
    step = ScheduleStep(from_epoch=0, params=all_params)
    return TrialRecord(id=number, schedule=(step,), epochs=epochs, state=state)


def test_rows_are_the_best_three_trials_and_then_running_ones():
    trials = [
        make_trial(0, [0.5], "finished"),
        make_trial(1, [0.4], "pruned"),
        make_trial(2, [0.9]),
        make_trial(3, [0.3], "finished"),
        make_trial(4, [0.6], "finished"),
        make_trial(5, []),
        make_trial(6, [0.1], "failed"),
    ]

    rows = live_rows(trials)

    assert [row["trial"] for row in rows] == [3, 1, 0, 2, 5]
    assert [row["state"] for row in rows][:2] == ["finished", "stopped early"]
    assert rows[-1]["loss"] == "-"


def test_table_has_at_most_eight_rows():
    assert len(live_rows([make_trial(number, [1.0]) for number in range(30)])) == 8


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["training.learning_rate", "model.hidden"], ["learning_rate", "hidden"]),
        (["training.optimizer_arguments.betas.0"], ["betas.0"]),
        (
            ["training.weight_decay", "training.optimizer_arguments.weight_decay"],
            ["training.weight_decay", "optimizer_arguments.weight_decay"],
        ),
        (["model.width", "model.options.net_width"], ["width", "net_width"]),
    ],
)
def test_columns_have_the_shortest_unique_names(paths, names):
    assert list(short_names(paths).values()) == names


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_columns_that_do_not_fit_are_listed_below_the_table(width):
    options = {f"model__options__number_{at}": at for at in range(9)}
    rows = live_rows([make_trial(0, [0.123456], **options)])

    cells, left_out = table_cells(rows, width=width)
    lines = table_text(rows, width=width).splitlines()

    assert cells[0] + left_out == ["trial", "state", "epochs", "loss", "learning_rate"] + [
        f"number_{at}" for at in range(9)
    ]
    assert max(map(len, lines[:2])) <= width
    assert bool(left_out) == (width < 200) == lines[-1].startswith("not shown: ")


def test_long_values_and_import_paths_are_shortened():
    rows = live_rows([make_trial(0, [0.5], model__architecture="m:Net", model__options__a=[1] * 9)])
    assert table_text(rows).splitlines()[1].endswith("0.01           Net  [1, 1, 1, 1, ...")


def test_table_without_rows_is_empty():
    assert table_text([]) == ""
