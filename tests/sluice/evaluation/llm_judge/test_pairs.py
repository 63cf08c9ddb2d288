"""Answer pairs are read from CSV and Parquet files and validated (LLM-1)."""

from pathlib import Path

import pandas as pd
import pytest

from sluice.base.errors import ContractError, SourceError
from sluice.evaluation.llm_judge.pairs import AnswerPair, read_pairs

ROWS = {
    "prompt": ["007", "b"],
    "candidate": ["None", ""],
    "baseline": ["x, y", "z"],
    "human": ["tie", None],
}
PAIRS = (
    AnswerPair(prompt="007", candidate="None", baseline="x, y", human="tie"),
    AnswerPair(prompt="b", candidate="", baseline="z"),
)


def test_csv_and_parquet_files_give_the_same_pairs(tmp_path: Path) -> None:
    pd.DataFrame(ROWS).to_csv(tmp_path / "pairs.csv", index=False)
    pd.DataFrame(ROWS).to_parquet(tmp_path / "pairs.parquet")

    assert read_pairs(tmp_path / "pairs.csv") == read_pairs(tmp_path / "pairs.parquet") == PAIRS


def test_human_labels_are_optional(tmp_path: Path) -> None:
    pd.DataFrame(ROWS).drop(columns="human").to_csv(tmp_path / "pairs.csv", index=False)

    assert [pair.human for pair in read_pairs(tmp_path / "pairs.csv")] == [None, None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"human": ["candidat", None]}, r"row 0: 'human' must be .* got 'candidat'"),
        ({"candidate": ["a", None]}, "row 1: 'candidate' must be a text, got none"),
        ({"prompt": [["a", "b"], ["c"]]}, "row 0: 'prompt' must be a text, got array"),
        ({"baseline": [1, 2]}, "row 0: 'baseline' must be a text, got 1"),
        ({"human": [["tie", "tie"], None]}, "row 0: 'human' must be .* got array"),
    ],
)
def test_an_invalid_row_is_reported_with_its_number(
    tmp_path: Path, change: dict[str, list[object]], message: str
) -> None:
    pd.DataFrame(ROWS | change).to_parquet(tmp_path / "pairs.parquet")

    with pytest.raises(ContractError, match=message):
        read_pairs(tmp_path / "pairs.parquet")


def test_an_invalid_pairs_file_is_rejected(tmp_path: Path) -> None:
    pd.DataFrame({"prompt": ["a"], "response": ["b"]}).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame(ROWS).iloc[:0].to_csv(tmp_path / "empty.csv", index=False)

    with pytest.raises(ContractError, match="got the columns prompt, response and 1 row"):
        read_pairs(tmp_path / "a.csv")
    with pytest.raises(ContractError, match="and 0 rows"):
        read_pairs(tmp_path / "empty.csv")
    with pytest.raises(SourceError, match="cannot be read"):
        read_pairs(tmp_path / "none.csv")
    with pytest.raises(SourceError, match=r"ends in \.csv or \.parquet"):
        read_pairs(tmp_path / "pairs.txt")


def test_an_unquoted_comma_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("prompt,candidate,baseline,human\nWell, why?,x,y,tie\nWhy?,x,y,tie\n")

    with pytest.raises(
        ContractError, match=r"^[^ ]*pairs.csv has rows with more fields than its 4 columns"
    ):
        read_pairs(path)
