"""Rows are described by the display column of the workload."""

import pandas as pd

from sluice.findings.row_descriptions import describe_rows

FRAME = pd.DataFrame(
    {"path": ["a/1.png", "b/2.png", "c/3.png"], "text": ["x", "two\n  lines", "w" * 90]}
)


def test_rows_are_described_by_the_display_column():
    assert describe_rows(FRAME, [2, 0], "path") == ("c/3.png", "a/1.png")


def test_a_description_is_one_short_line():
    assert describe_rows(FRAME, [1, 2], "text") == ("two lines", "w" * 77 + "...")


def test_descriptions_are_empty_without_a_display_column():
    assert describe_rows(FRAME, [0, 1], None) == ("", "")
    assert describe_rows(FRAME, [0], "gone") == ("",)
