"""HTML building blocks of the reports."""

from sluice.reports.page import table


def test_cells_of_a_wide_table_have_column_names_for_small_screens():
    names = ("fold", "row", "gain <x>", "candidate", "")
    wide = table(names, [["0", "7", "<b>1</b>", "2", "note"]], numbers=frozenset({2}))

    assert '<td class=number data-name="gain &lt;x&gt;"><b>1</b></td>' in wide
    assert "<td>note</td>" in wide
    assert "<table class=wide>" in wide
    assert "data-name" not in table(names[:4], [["0", "7", "1", "2"]])
