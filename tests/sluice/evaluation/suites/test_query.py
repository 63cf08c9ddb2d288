"""A query is a condition on columns with the result of pandas and no access to other code."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.evaluation.suites.query import MAX_CHARACTERS, MAX_DEPTH, evaluate_query


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    days = pd.date_range("2020-01-01", periods=200, name="date")
    return pd.DataFrame(
        {
            "x": rng.integers(0, 30, 200).astype("float64"),
            "y": rng.integers(-5, 9, 200),
            "volume z": rng.normal(size=200),
            "gr\u00f6\u00dfe": rng.normal(size=200),
            "name": rng.choice(["a", "b", "ab"], 200),
            "open": rng.random(200) < 0.5,
            "at": days[::-1],
        },
        index=days,
    )


@pytest.mark.parametrize(
    "query",
    [
        "x > 20",
        "20 < x",
        "3 < x <= 7",
        "x == 3 and y < 8 or x == 9",
        "not x > 3 and y != 2",
        "not (x > 3 or open)",
        "open == True",
        "x + 2 * y - 1 > 7 / 2",
        "x ** 2 % 7 == 4 and x // 3 >= 2",
        "-x + y > +1e-3",
        "x in [1, 2, 3]",
        "y not in [-1, 2]",
        "name in ['a', 'ab']",
        "name == 'a' and name >= \"a\"",
        "`volume z` > 0.5 and gr\u00f6\u00dfe < `volume z`",
        "index >= '2020-04-29'",
        "date < '2020-02-01'",
        "at > '2020-05-01' and x > 1",
        "index > at",
        "x != x",
        "y == -3",
        "x > 9 ** 9 ** 2",
    ],
)
def test_a_condition_selects_the_same_rows_as_pandas(table, query):
    table.iloc[5, 0] = np.nan

    expected = table.eval(query, engine="python")

    assert evaluate_query(query, table).tolist() == expected.tolist()
    assert 0 <= expected.sum() < len(table)


def test_a_missing_value_of_a_nullable_column_makes_the_condition_false(table):
    nullable = table.astype({"x": "Float64"})
    nullable.iloc[5, 0] = pd.NA

    for query in ("x > -1", "not x > -1", "x + 1 > 0", "x == x", "x != x"):
        assert not evaluate_query(query, nullable).iloc[5]


@pytest.mark.parametrize(
    ("dtype", "missing_rows"),
    [
        ("float64", [5]),
        ("object", [5]),
        ("category", [5]),
        ("Float64", []),
        ("Int64", []),
        ("string", []),
    ],
)
def test_a_column_that_is_unequal_to_itself_is_missing_unless_it_is_nullable(dtype, missing_rows):
    values = pd.Series([1.0, 2.0, 3.0, 1.0, 2.0, None, 3.0])
    values = values.map({1.0: "a", 2.0: "b", 3.0: "c"}) if dtype == "object" else values
    table = pd.DataFrame({"x": values.astype(dtype)})

    assert np.flatnonzero(evaluate_query("x != x", table)).tolist() == missing_rows


ATTACKS = [
    "x.where.__func__.__globals__['sys'].modules['pathlib'].Path({file!r}).write_text('1') > x",
    "x.__class__ == 1",
    "().__class__.__bases__[0].__subclasses__() == x",
    "@pd.eval('1') == x",
    "@x > 1",
    "__import__('pathlib').Path({file!r}).write_text('1') > x",
    "open({file!r}, 'w') == x",
    "exec('1') == x",
    "__builtins__ == x",
    "__class__ == x",
    "\uff3f\uff3fclass\uff3f\uff3f == x",
    "x.\uff3f\uff3fclass\uff3f\uff3f == x",
    "\U0001d452\U0001d463\U0001d44e\U0001d459('1') == x",
    "`x.__class__` == 1",
    "`__import__('os')` == 1",
    "x == f'{{x.__class__}}'",
    "x == f'{{open({file!r}, 'w')}}'",
    "(lambda: x)() == 1",
    "lambda: x > 1",
    "(w := x) > 1",
    "[c for c in x] == 1",
    "x in [c for c in (1, 2)]",
    "x in {{1: 2}}",
    "x in {{1, 2}}",
    "x in 'abc'",
    "x in name",
    "x in [x, y]",
    "x in [[1], [2]]",
    "x in [-x]",
    "x in [*x]",
    "x[0] > 1",
    "x[0:3] > 1",
    "name * 1000000000 == 'a'",
    "'a' * 1000000000 == name",
    "name + name == 'aa'",
    "name % 3 == 'a'",
    "'%1000000000d' % 3 == name",
    "-name == 'a'",
    "open + 1 > 1",
    "x > b'1'",
    "x > 1j",
    "x > ...",
    "x > None",
    "x is None",
    "x is not 3",
    "x if open else y",
    "await x",
    "yield x",
    "(yield) == x",
    "x @ y > 1",
    "x << 100000 > 1",
    "x > 1; y > 1",
    "x > 1\ny > 1",
    "x > 1 # \x00",
    "import os",
    "w = x",
    "x > 1 & y < 2",
    "(x > 1) | (y < 2)",
    "~(x > 1)",
    "x and y",
    "not x",
    "x == 'a'",
    "name == 1",
    "at > 3",
    "at > 'never'",
    "x == 99999999999999999999",
    "x == " + "9" * 900,
    "x > " + "9" * 5_000,
    "(" * 10_000 + "x > 1" + ")" * 10_000,
    "(" * 450 + "x > 1" + ")" * 450,
    "not " * 240 + "x > 1",
    "-" * 900 + "x > 1",
    "~" * 900 + "x > 1",
    "+".join(["x"] * 400) + " > 1",
    "x" + "**9" * 300 + " > 1",
    "x > 1 or " * 120 + "x > 1",
    "",
    "   ",
    "x",
    "3 < 4",
    "True",
    "'a'",
    "'a' in ['a']",
    "ilevel_0 > '2020'",
    "inf > x",
]


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_anything_but_a_condition_on_columns_is_rejected(table, tmp_path, attack):
    file = tmp_path / "written"

    with pytest.raises(ContractError) as caught:
        evaluate_query(attack.format(file=str(file)), table)

    assert not file.exists()
    assert caught.value.fix
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("x > 1 and x.size > 2", r"attribute access \(\.size\) is not allowed at character 11"),
        ("gr\u00f6\u00dfe > 1 or max(x) > 2", "a call is not allowed at character 14"),
        ("`volume z` > y[0]", "a subscript is not allowed at character 14"),
        ("x > 1 & y < 2", "write 'and' at character 5"),
        ("name > 1", "text cannot be compared with number at character 8"),
        ("volume > 1", r"no column 'volume', did you mean 'volume z' at character 1"),
        ("x > > 1", "invalid syntax .* at character 5"),
        ("x > 1 " + " " * 2_000 + "or y > 1", "2,014 characters, more than 1,000"),
    ],
)
def test_the_error_names_the_rejected_part_and_its_position(table, query, message):
    with pytest.raises(ContractError, match=message):
        evaluate_query(query, table)


def test_the_suggested_column_has_the_case_of_the_table(table):
    renamed = table.rename(columns={"x": "RSI_14"})

    with pytest.raises(ContractError, match="no column 'RSI_15', did you mean 'RSI_14' at char"):
        evaluate_query("RSI_15 > 1", renamed)


@pytest.mark.parametrize(
    "make_query",
    [
        lambda depth: "x" + " + x" * (depth - 1) + " > 1",
        lambda depth: "x > 1" + " ** 1" * (depth - 1),
        lambda depth: "not " * (depth - 1) + "x > 1",
        lambda depth: "not " * (depth - 2) + "x in [1, 2]",
        lambda depth: "not " * (depth - 3) + "x in [-1, 2]",
    ],
    ids=["sum", "power", "not", "list", "negative number"],
)
def test_a_query_has_at_most_the_maximum_depth(table, make_query):
    assert len(evaluate_query(make_query(MAX_DEPTH), table)) == len(table)
    with pytest.raises(ContractError, match=f"nested more than {MAX_DEPTH} levels deep"):
        evaluate_query(make_query(MAX_DEPTH + 1), table)


def test_the_largest_power_is_computed_at_once(table):
    assert evaluate_query("x < 9 ** 9 ** 9 ** 9", table).all()


def test_the_longest_query_is_computed(table):
    query = "x > 1 or (" + " or ".join(["y == 1"] * 90)
    query = query + " " * (MAX_CHARACTERS - 1 - len(query)) + ")"

    assert evaluate_query(query, table).sum() > 100


def test_columns_with_the_same_name_are_rejected(table):
    duplicated = table.rename(columns={"y": "x"})

    with pytest.raises(ContractError, match="2 columns are named 'x'"):
        evaluate_query("x > 1", duplicated)


def test_categories_are_compared_by_their_values(table):
    assert evaluate_query("name == 'a'", table.astype({"name": "category"})).any()


@pytest.mark.parametrize(
    ("values", "query"), [([1, None, 2], "x < 2"), ([True, None, False], "x == True")]
)
def test_categories_of_integers_and_truth_values_may_be_missing(values, query):
    table = pd.DataFrame({"x": pd.Categorical(values)})

    assert evaluate_query(query, table).tolist() == [True, False, False]
