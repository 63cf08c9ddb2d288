"""Evaluates the queries of suites: one condition on the columns of a table.

A query is parsed as a Python expression and evaluated by this module on whole columns. Node types
that this module does not handle are rejected, so a query cannot contain attributes, calls or
subscripts. The names in a query refer to columns and the index only. Arithmetic uses float64, so a
query cannot create huge integers or texts.
"""

import ast
import operator
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from sluice.base.errors import ContractError
from sluice.base.settings import suggest_nearest

MAX_CHARACTERS = 1_000
"""Maximum length of a query [characters]."""

MAX_DEPTH = 80
"""Maximum nesting depth of a query [operators]. A comparison and a list also count as operators.
``x + y + z > 1`` has depth three, because its sums contain each other."""

MAX_INTEGER = 2**63 - 1
"""Maximum value of an integer in a query."""

_MAX_NAMED_COLUMNS = 24
"""Maximum number of column names in a message."""

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`(?P<name>[^`]*)`")

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_KEYWORDS = {ast.BitAnd: "and", ast.BitOr: "or", ast.Invert: "not"}
"""Keyword that an error message suggests for an operator of pandas. The operators are rejected,
because they bind tighter than comparisons, which users do not expect."""

_GRAMMAR = (
    "Use column names (in `backticks` if a name has special characters), index, numbers, texts, "
    "True, False, comparisons, 'in' and 'not in' with a list, 'and', 'or', 'not', and + - * / // "
    "% **, such as 'volume_z > 2 and rsi_14 < 30'."
)


class _RejectedQuery(Exception):
    """Raised for a rejected part of a query, with the byte offset of this part."""

    def __init__(self, problem: str, node: ast.expr | None = None) -> None:
        super().__init__(problem)
        self.byte_offset = None if node is None else node.col_offset


def evaluate_query(query: str, frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each row whether the query is true; a missing result counts as false.

    Missing values are compared as in pandas. A comparison with NaN or NaT is false, except that
    ``!=`` is true, so ``x != x`` selects the rows in which x is missing. In a column with a
    nullable dtype, such as Int64, a comparison with a missing value is missing, even ``x != x``.

    Args:
        query: One condition. Names refer to columns, ``index`` (the row labels) and the name of
            the index; a name in backticks may contain any characters. Allowed are numbers, texts,
            True and False, comparisons, ``in`` and ``not in`` with a list of literals, ``and``,
            ``or``, ``not`` and arithmetic on numbers.
        frame: Table on which the query is evaluated.

    Raises:
        ContractError: The query is too long or nested too deeply, contains a construct that is not
            allowed or an unknown column, compares values of different types, or is not a condition.
            The message contains the rejected part and its position.

    Cost:
        One pass over a column for each operator; at most ``MAX_CHARACTERS`` operators.
    """
    text = query.strip()
    try:
        if len(text) > MAX_CHARACTERS:
            raise _RejectedQuery(f"it has {len(text):,} characters, more than {MAX_CHARACTERS:,}")
        body, names = _parse(text)
        result = _Evaluation(frame, names).evaluate(body)
    except _RejectedQuery as error:
        position = "" if error.byte_offset is None else _describe_position(text, error.byte_offset)
        raise ContractError(
            f"The query {_excerpt(text)} cannot be evaluated: {error}{position}.",
            cause=f"The columns are {_list_columns(frame.columns)}.",
            fix=_GRAMMAR,
        ) from None
    if not isinstance(result, pd.Series) or not types.is_bool_dtype(result.dtype):
        raise ContractError(
            f"The query {_excerpt(text)} is not a condition, true or false for each row.",
            fix="Compare a column with a value, such as 'volume_z > 2'.",
        )
    return result.fillna(False).astype("bool")


def _parse(text: str) -> tuple[ast.expr, dict[int, str]]:
    """Return the expression, and the names in backticks by their byte offset."""
    if not text.isprintable():
        raise _RejectedQuery("it must be one line of printable characters")
    names: dict[int, str] = {}

    def replace_backticks(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0]
        names[len(text[: match.start()].encode())] = match["name"]
        # The identifier has the same number of bytes, so that all positions stay the same.
        return "_" * len(match[0].encode())

    source = _QUOTED.sub(replace_backticks, text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in texts
            body = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        position = None if error.offset is None else f" at character {min(error.offset, len(text))}"
        raise _RejectedQuery(f"invalid syntax ({error.msg}){position or ''}") from None
    except (ValueError, MemoryError, RecursionError):
        raise _RejectedQuery("it is nested too deeply, or has a number that is too long") from None
    _require_shallow(body)
    return body, names


def _require_shallow(body: ast.expr) -> None:
    """Raise an error for deep nesting, before any recursive evaluation."""
    level: list[ast.expr] = [body]
    # The innermost operator contains one more level: names and literals. Children that are not
    # expressions are ignored: operators have no children, and an expression with another child,
    # such as a comprehension, is rejected by the evaluation.
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for node in level
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
        ]
        if not level:
            return
    raise _RejectedQuery(f"it is nested more than {MAX_DEPTH} levels deep")


class _Evaluation:
    """Evaluates the nodes of one query on one table, and rejects unsupported node types."""

    def __init__(self, frame: pd.DataFrame, names: dict[int, str]) -> None:
        self._frame = frame
        self._names = names

    def evaluate(self, node: ast.expr) -> Any:
        """Return a column, or the value of a literal."""
        match node:
            case ast.Constant():
                return self._literal(node)
            case ast.Name():
                return self._column(node)
            case ast.Compare():
                return self._comparison(node)
            case ast.BoolOp():
                conditions = [self._condition(operand) for operand in node.values]
                result = conditions[0]
                for condition in conditions[1:]:
                    is_and = isinstance(node.op, ast.And)
                    result = result & condition if is_and else result | condition
                return result
            case ast.UnaryOp(op=ast.Not()):
                return ~self._condition(node.operand)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                operand = self._number(node.operand)
                return -operand if isinstance(node.op, ast.USub) else operand
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                left, right = self._number(node.left), self._number(node.right)
                with np.errstate(all="ignore"):
                    return _ARITHMETIC[type(node.op)](left, right)
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()) | ast.UnaryOp(op=ast.Invert()):
                keyword = _KEYWORDS[type(node.op)]
                raise _RejectedQuery(
                    f"the operators & | ~ are not allowed: write '{keyword}'", node
                )
            case ast.List() | ast.Tuple():
                raise _RejectedQuery("a list is allowed after 'in' and 'not in' only", node)
        raise _RejectedQuery(f"{_describe_node(node)} is not allowed", node)

    def _literal(self, node: ast.Constant) -> Any:
        value = node.value
        if type(value) not in (bool, int, float, str):
            raise _RejectedQuery(f"the literal {value!r} is not allowed", node)
        if type(value) is int and value > MAX_INTEGER:
            raise _RejectedQuery(f"an integer must be at most {MAX_INTEGER}", node)
        return value

    def _column(self, node: ast.Name) -> "pd.Series[Any]":
        name = self._names.get(node.col_offset, node.id)
        positions = [i for i, column in enumerate(self._frame.columns) if str(column) == name]
        if len(positions) == 1:
            column = self._frame.iloc[:, positions[0]]
            if isinstance(column.dtype, pd.CategoricalDtype):
                return _decode_categories(column, column.dtype)
            return column
        if not positions and name in ("index", self._frame.index.name):
            return pd.Series(self._frame.index, index=self._frame.index)
        if positions:
            raise _RejectedQuery(f"{len(positions)} columns are named '{name}'", node)
        hint = suggest_nearest(name, [str(column) for column in self._frame.columns]).rstrip("?")
        hint = hint.replace(" Did", ", did", 1)  # continues the sentence
        raise _RejectedQuery(f"there is no column '{name}'{hint}", node)

    def _condition(self, node: ast.expr) -> "pd.Series[bool]":
        value = self.evaluate(node)
        if not isinstance(value, pd.Series) or not types.is_bool_dtype(value.dtype):
            raise _RejectedQuery(
                "'and', 'or' and 'not' need conditions, true or false for each row", node
            )
        return value

    def _number(self, node: ast.expr) -> Any:
        value = self.evaluate(node)
        if _describe_type(value) != "number":
            raise _RejectedQuery(f"arithmetic needs numbers, got {_describe_type(value)}", node)
        if isinstance(value, pd.Series):
            return value.astype("float64" if isinstance(value.dtype, np.dtype) else "Float64")
        return np.float64(value)

    def _comparison(self, node: ast.Compare) -> Any:
        left, result = self.evaluate(node.left), None
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                comparison, right = self._membership(left, op, right_node), None
            elif type(op) in _COMPARISONS:
                right = self.evaluate(right_node)
                comparison = _compare(left, right, _COMPARISONS[type(op)], right_node)
            else:
                raise _RejectedQuery("'is' is not allowed: write == or !=", right_node)
            result = comparison if result is None else result & comparison
            left = right
        return result

    def _membership(self, column: Any, op: ast.cmpop, node: ast.expr) -> "pd.Series[bool]":
        if not isinstance(node, ast.List | ast.Tuple):
            raise _RejectedQuery("'in' and 'not in' need a list, such as [1, 2]", node)
        if not isinstance(column, pd.Series):
            raise _RejectedQuery("'in' and 'not in' need a column on their left", node)
        is_member = pd.Series(False, index=column.index)
        for element in node.elts:
            literal = element
            if isinstance(element, ast.UnaryOp) and isinstance(element.op, ast.USub):
                literal = element.operand
            if not isinstance(literal, ast.Constant):
                raise _RejectedQuery("a list may contain numbers and texts only", element)
            is_member = is_member | _compare(column, self.evaluate(element), operator.eq, element)
        return ~is_member if isinstance(op, ast.NotIn) else is_member


def _decode_categories(column: "pd.Series[Any]", dtype: pd.CategoricalDtype) -> "pd.Series[Any]":
    """Return the values of a categorical column, as float64 if some of its integers are missing."""
    value_dtype = dtype.categories.dtype
    if isinstance(value_dtype, np.dtype) and value_dtype.kind in "iub" and column.hasnans:
        return column.astype("boolean" if value_dtype.kind == "b" else "float64")
    return column.astype(value_dtype)


def _compare(left: Any, right: Any, compare: Callable[[Any, Any], Any], node: ast.expr) -> Any:
    """Compare values of the same type; dates and durations may also be compared with texts."""
    kinds = {_describe_type(left), _describe_type(right)}
    is_text_with_time = kinds in ({"date", "text"}, {"duration", "text"})
    if len(kinds) != 1 and not is_text_with_time:
        raise _RejectedQuery(
            f"{_describe_type(left)} cannot be compared with {_describe_type(right)}", node
        )
    try:
        with np.errstate(all="ignore"):
            return compare(left, right)
    except (TypeError, ValueError, OverflowError) as error:
        raise _RejectedQuery(f"the values cannot be compared ({error})", node) from None


def _describe_type(value: Any) -> str:
    """Return the type of a column or literal as text, for comparisons and messages."""
    if isinstance(value, pd.Series):
        dtype = value.dtype
        for kind, has_kind in (
            ("truth value", types.is_bool_dtype),
            ("complex number", types.is_complex_dtype),
            ("number", types.is_numeric_dtype),
            ("date", types.is_datetime64_any_dtype),
            ("duration", types.is_timedelta64_dtype),
        ):
            if has_kind(dtype):
                return kind
        inferred_type = types.infer_dtype(value, skipna=True)
        return "text" if inferred_type in ("string", "empty") else f"values of type {inferred_type}"
    if isinstance(value, bool | np.bool_):
        return "truth value"
    return "text" if isinstance(value, str) else "number"


def _describe_node(node: ast.expr) -> str:
    match node:
        case ast.Attribute():
            return f"attribute access (.{node.attr})"
        case ast.Call():
            return "a call"
        case ast.Subscript():
            return "a subscript"
        case ast.JoinedStr():
            return "an f-string"
    return f"the construct {type(node).__name__}"


def _describe_position(text: str, byte_offset: int) -> str:
    text_before = text.encode()[:byte_offset].decode(errors="replace")
    return f" at character {len(text_before) + 1}"


def _excerpt(text: str) -> str:
    max_characters = 200
    return repr(text) if len(text) <= max_characters else f"{text[:max_characters]!r}..."


def _list_columns(columns: pd.Index) -> str:
    more = (
        f" and {len(columns) - _MAX_NAMED_COLUMNS} more"
        if len(columns) > _MAX_NAMED_COLUMNS
        else ""
    )
    return ", ".join(map(str, columns[:_MAX_NAMED_COLUMNS])) + more
