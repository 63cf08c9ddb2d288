"""Loss tables are stored, loaded, aligned and validated."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError, SourceError
from sluice.evaluation.losses import LossTable, read_losses, write_losses
from tests.sluice.evaluation.loss_samples import make_losses


def make_sample(**changes) -> LossTable:
    arguments = {
        "subject": "model",
        "window": "window",
        "seeds": (3, 8),
        "fold_N": np.array([0, 0, 1]),
        "label_N": np.array(["2020-01-01", "2020-01-02", "2020-02-01"]),
        "loss_SN": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, np.nan]]),
    }
    return LossTable(**(arguments | changes))


def assert_same(left: LossTable, right: LossTable) -> None:
    assert (left.subject, left.window, left.seeds) == (right.subject, right.window, right.seeds)
    np.testing.assert_array_equal(left.fold_N, right.fold_N)
    np.testing.assert_array_equal(left.label_N, right.label_N)
    np.testing.assert_array_equal(left.loss_SN, right.loss_SN)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_table_is_loaded_unchanged_from_a_file(tmp_path, suffix, deterministic):
    losses = make_sample()
    if deterministic:
        losses = make_sample(seeds=(), loss_SN=np.array([[0.1, np.inf, 1 / 3]]))
    path = tmp_path / f"losses{suffix}"

    write_losses(losses, path)

    assert_same(read_losses(path, subject="model", window="window"), losses)


def test_shuffled_rows_are_returned_in_time_order():
    frame = make_sample().to_frame().sample(frac=1, random_state=1)

    assert_same(LossTable.from_frame(frame, subject="model", window="window"), make_sample())


def test_numeric_labels_are_sorted_by_value_and_dates_by_time():
    numbers = pd.DataFrame({"seed": 0, "fold": 0, "row": [10, 9, 100], "loss": [1.0, 2.0, 3.0]})
    times = pd.to_datetime(["2020-03-01", "2020-01-01", "2020-02-01"])

    by_number = LossTable.from_frame(numbers, subject="m")
    by_date = LossTable.from_frame(numbers.assign(row=times), subject="m")

    assert by_number.label_N.tolist() == ["9", "10", "100"]
    assert by_number.loss_SN.tolist() == [[2.0, 1.0, 3.0]]
    assert by_date.loss_SN.tolist() == [[2.0, 3.0, 1.0]]


def test_the_window_digest_depends_on_the_rows_and_not_on_the_losses():
    frame = make_sample().to_frame()
    other_losses = frame.assign(loss=0.5)
    fewer = frame[frame["row"] != "2020-02-01"]
    digests = [LossTable.from_frame(f, subject="m").window for f in (frame, other_losses, fewer)]

    assert digests[0] == digests[1] != digests[2]


def test_alignment_is_by_key_not_by_position():
    losses = make_sample()
    order = np.array([2, 0, 1])
    shuffled = make_sample(
        fold_N=losses.fold_N[order], label_N=losses.label_N[order], loss_SN=losses.loss_SN[:, order]
    )

    assert_same(shuffled.aligned_to(losses), losses)


def test_other_rows_are_rejected_with_the_first_difference():
    other_rows = make_sample(label_N=np.array(["2020-01-01", "2020-01-09", "2020-02-01"]))

    with pytest.raises(ContractError, match=r"1 are only in model \(first: fold 0, row 2020-01-02"):
        make_sample().aligned_to(other_rows)


def test_the_same_row_in_another_fold_is_rejected():
    with pytest.raises(ContractError, match="same \\(fold, row\\)"):
        make_sample(fold_N=np.array([0, 1, 1])).aligned_to(make_sample())


def test_another_window_is_rejected():
    with pytest.raises(ContractError, match="one window, got window and elsewhere"):
        make_sample().aligned_to(make_sample(window="elsewhere"))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"label_N": np.array(["a", "a", "b"])}, "must occur once per seed, got 1 duplicate,"),
        ({"seeds": (3, 3)}, "Seeds must be distinct"),
        ({"seeds": (1, 2, 3)}, r"\(seeds, rows\) = \(3, 3\)"),
        ({"seeds": ()}, r"\(seeds, rows\) = \(1, 3\)"),
        ({"fold_N": np.array([0, 0])}, r"folds \(2,\)"),
    ],
)
def test_an_inconsistent_table_is_rejected(changes, cause):
    with pytest.raises(ContractError, match=cause):
        make_sample(**changes)


def test_diverged_and_copied_seeds_are_counted():
    losses = np.array([[1.0, 2.0], [np.inf, 2.0], [1.0, 2.0], [np.nan, 1.0]])

    table = make_losses(losses, "m")

    assert table.diverged_seeds == (1, 3)
    assert table.num_distinct_seeds == 3


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda f: f.drop(columns="fold"), "needs the columns seed, fold, row, loss"),
        (lambda f: f.iloc[:0], "0 rows"),
        (lambda f: pd.concat([f, f.iloc[:1]]), "must occur once, got 1 duplicate, first seed 3"),
        (lambda f: f.iloc[1:], "1 missing, first seed 3, fold 0, row 2020-01-01"),
        (lambda f: f.assign(fold=0.5), r"'fold' must contain integers below 2\^53, got .*0.5"),
        (lambda f: f.assign(seed=["x"] * 6), "'seed' must contain integers .*got 'x'"),
        (lambda f: f.assign(seed=2**53 + 1), "'seed' must contain .*got .*9007199254740993"),
        (lambda f: f.assign(seed=-1e30), r"'seed' must contain .*got .*-1e\+30"),
        (lambda f: f.assign(seed=[None, *[1] * 5]), "or, for a rule without seeds, in none"),
        (lambda f: f.assign(loss=["low", *["1"] * 5]), "'loss' must contain numbers, got 'low'"),
        (lambda f: f.assign(row=[None, *f["row"][1:]]), "must contain a label in every row"),
    ],
)
def test_an_invalid_row_is_rejected_with_its_cause(change, cause):
    with pytest.raises(ContractError, match=cause):
        LossTable.from_frame(change(make_sample().to_frame()), subject="m")


@pytest.mark.parametrize("name", ["missing.parquet", "missing.csv"])
def test_a_missing_file_is_a_source_error(tmp_path, name):
    with pytest.raises(SourceError, match="missing"):
        read_losses(tmp_path / name, subject="m")


@pytest.mark.parametrize(
    ("name", "content"),
    [("empty.csv", b""), ("empty.parquet", b""), ("text.parquet", b"seed,fold"), ("l.txt", b"")],
)
def test_an_unreadable_file_is_a_source_error(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(SourceError, match=r"cannot be read|must end in"):
        read_losses(tmp_path / name, subject="m")


def test_the_error_for_a_missing_file_suggests_a_similar_name(tmp_path):
    (tmp_path / "new.parquet").write_bytes(b"")

    with pytest.raises(SourceError, match=r"no file .*nwe\.parquet\. Did you mean 'new\.parquet'"):
        read_losses(tmp_path / "nwe.parquet", subject="m")


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%m/%d/%Y", "bar%-d-%Y"])
def test_labels_that_do_not_sort_in_time_order_are_rejected(form):
    """Text order makes dependent rows seem independent: 27 % false promotions (STAT-1)."""
    days = pd.date_range("2023-12-01", periods=60).strftime(form)
    lines = pd.DataFrame({"seed": 0, "fold": 0, "row": days, "loss": 1.0})

    with pytest.raises(ContractError, match="time order of the rows is unknown"):
        LossTable.from_frame(lines, subject="m")


@pytest.mark.parametrize("labels", [["9.5", "10.0", "10.5"], ["-1", "2", "10"], ["a", "b", "c"]])
def test_numeric_text_labels_are_sorted_by_value(labels):
    lines = pd.DataFrame({"seed": 0, "fold": 0, "row": labels, "loss": [1.0, 2.0, 3.0]})

    losses = LossTable.from_frame(lines, subject="m")

    assert losses.label_N.tolist() == labels
    assert losses.loss_SN.tolist() == [[1.0, 2.0, 3.0]]
