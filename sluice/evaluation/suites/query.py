"""Query language of suites: one condition on the columns of a table.

A query is parsed as a Python expression, and every node type that is not listed here is rejected,
so that attributes, calls, subscripts and other names are inaccessible. This module evaluates the
conditions on whole columns. Arithmetic uses float64, so that integers and texts cannot grow.
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
"""Maximum length of a query."""

MAX_DEPTH = 40
"""Maximum nesting depth of conditions and operators."""

MAX_INTEGER = 2**63 - 1
"""Largest integer literal."""

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
"""Operators of pandas that bind tighter than comparisons, with the keyword to use instead."""

_GRAMMAR = (
    "Use column names (in `backticks` if a name has special characters), index, numbers, texts, "
    "True, False, comparisons, 'in' and 'not in' with a list, 'and', 'or', 'not', and + - * / // "
    "% **, such as 'volume_z > 2 and rsi_14 < 30'."
)


class _Refused(Exception):
    """Rejected part of a query, with its byte offset."""

    def __init__(self, problem: str, node: ast.expr | None = None) -> None:
        super().__init__(problem)
        self.offset = None if node is None else node.col_offset


def matching_rows(query: str, frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each row whether the query is true; missing values make it false.

    Args:
        query: One condition. Names refer to columns, ``index`` (the row labels) and the name of
            the index; a name in backticks may contain any characters. Allowed are numbers, texts,
            True and False, comparisons, ``in`` and ``not in`` with a list of literals, ``and``,
            ``or``, ``not`` and arithmetic on numbers. ``x != x`` is true for missing numbers.
        frame: Table on which the query is evaluated.

    Raises:
        ContractError: The query is too long or nested too deeply, contains another construct or an
            unknown column, compares values of different types, or is not a condition. The message
            contains the rejected part and its position.

    Cost:
        One pass over a column for each operator; at most ``MAX_CHARACTERS`` operators.
    """
    text = query.strip()
    try:
        if len(text) > MAX_CHARACTERS:
            raise _Refused(f"it has {len(text):,} characters and may have {MAX_CHARACTERS:,}")
        body, names = _parse(text)
        found = _Evaluation(frame, names).value(body)
    except _Refused as error:
        place = "" if error.offset is None else _position(text, error.offset)
        raise ContractError(
            f"The query {_excerpt(text)} cannot be evaluated: {error}{place}.",
            cause=f"The columns are {_first(frame.columns)}.",
            fix=_GRAMMAR,
        ) from None
    if not isinstance(found, pd.Series) or not types.is_bool_dtype(found.dtype):
        raise ContractError(
            f"The query {_excerpt(text)} is not a condition, true or false for each row.",
            fix="Compare a column with a value, such as 'volume_z > 2'.",
        )
    return found.fillna(False).astype("bool")


def _parse(text: str) -> tuple[ast.expr, dict[int, str]]:
    """Return the expression, and the names in backticks by their byte offset."""
    if not text.isprintable():
        raise _Refused("it must be one line of printable characters")
    names: dict[int, str] = {}

    def plain(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0]
        names[len(text[: match.start()].encode())] = match["name"]
        # An identifier with the same number of bytes, so that all positions stay the same.
        return "_" * len(match[0].encode())

    source = _QUOTED.sub(plain, text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in texts
            body = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        at = None if error.offset is None else f" at character {min(error.offset, len(text))}"
        raise _Refused(f"invalid syntax ({error.msg}){at or ''}") from None
    except (ValueError, MemoryError, RecursionError):
        raise _Refused("it is nested too deeply, or has a number that is too long") from None
    _require_shallow(body)
    return body, names


def _require_shallow(body: ast.expr) -> None:
    """Raise an error for deep nesting, before any recursive evaluation."""
    level: list[ast.AST] = [body]
    for _ in range(2 * MAX_DEPTH):  # operators are separate nodes
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise _Refused(f"it is nested more than {MAX_DEPTH} levels deep")


class _Evaluation:
    """Evaluates the nodes of one query on one table; other node types are rejected."""

    def __init__(self, frame: pd.DataFrame, names: dict[int, str]) -> None:
        self._frame = frame
        self._names = names

    def value(self, node: ast.expr) -> Any:
        """Return a column, or the value of a literal."""
        match node:
            case ast.Constant():
                return self._literal(node)
            case ast.Name():
                return self._column(node)
            case ast.Compare():
                return self._comparison(node)
            case ast.BoolOp():
                parts = [self._condition(part) for part in node.values]
                joined = parts[0]
                for part in parts[1:]:
                    joined = joined & part if isinstance(node.op, ast.And) else joined | part
                return joined
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
                raise _Refused(f"the operators & | ~ are not allowed: write '{keyword}'", node)
            case ast.List() | ast.Tuple():
                raise _Refused("a list is allowed after 'in' and 'not in' only", node)
        raise _Refused(f"{_described(node)} is not allowed", node)

    def _literal(self, node: ast.Constant) -> Any:
        value = node.value
        if type(value) not in (bool, int, float, str):
            raise _Refused(f"the literal {value!r} is not allowed", node)
        if type(value) is int and value > MAX_INTEGER:
            raise _Refused(f"an integer must be at most {MAX_INTEGER}", node)
        return value

    def _column(self, node: ast.Name) -> "pd.Series[Any]":
        name = self._names.get(node.col_offset, node.id)
        same = [at for at, column in enumerate(self._frame.columns) if str(column) == name]
        if len(same) == 1:
            column = self._frame.iloc[:, same[0]]
            if isinstance(column.dtype, pd.CategoricalDtype):
                return column.astype(column.dtype.categories.dtype)
            return column
        if not same and name in ("index", self._frame.index.name):
            return pd.Series(self._frame.index, index=self._frame.index)
        if same:
            raise _Refused(f"{len(same)} columns are named '{name}'", node)
        hint = suggest_nearest(name, [str(column) for column in self._frame.columns]).rstrip("?")
        raise _Refused(f"there is no column '{name}'{',' if hint else ''}{hint.lower()}", node)

    def _condition(self, node: ast.expr) -> "pd.Series[bool]":
        value = self.value(node)
        if not isinstance(value, pd.Series) or not types.is_bool_dtype(value.dtype):
            raise _Refused(
                "'and', 'or' and 'not' need conditions, true or false for each row", node
            )
        return value

    def _number(self, node: ast.expr) -> Any:
        value = self.value(node)
        if _kind(value) != "number":
            raise _Refused(f"arithmetic needs numbers, got {_kind(value)}", node)
        if isinstance(value, pd.Series):
            return value.astype("float64" if isinstance(value.dtype, np.dtype) else "Float64")
        return np.float64(value)

    def _comparison(self, node: ast.Compare) -> Any:
        left, found = self.value(node.left), None
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn):
                part, right = self._membership(left, op, right_node), None
            elif type(op) in _COMPARISONS:
                right = self.value(right_node)
                part = _compared(left, right, _COMPARISONS[type(op)], right_node)
            else:
                raise _Refused("'is' is not allowed: write == or !=", right_node)
            found = part if found is None else found & part
            left = right
        return found

    def _membership(self, column: Any, op: ast.cmpop, node: ast.expr) -> "pd.Series[bool]":
        if not isinstance(node, ast.List | ast.Tuple):
            raise _Refused("'in' and 'not in' need a list, such as [1, 2]", node)
        if not isinstance(column, pd.Series):
            raise _Refused("'in' and 'not in' need a column on their left", node)
        found = pd.Series(False, index=column.index)
        for element in node.elts:
            signed = isinstance(element, ast.UnaryOp) and isinstance(element.op, ast.USub)
            literal = element.operand if isinstance(element, ast.UnaryOp) and signed else element
            if not isinstance(literal, ast.Constant):
                raise _Refused("a list may contain numbers and texts only", element)
            found = found | _compared(column, self.value(element), operator.eq, element)
        return ~found if isinstance(op, ast.NotIn) else found


def _compared(left: Any, right: Any, compare: Callable[[Any, Any], Any], node: ast.expr) -> Any:
    """Compare values of the same type; dates may also be compared with texts."""
    kinds = {_kind(left), _kind(right)}
    dates_and_texts = kinds <= {"date", "duration", "text"} and len(kinds) == 2
    if len(kinds) != 1 and not (dates_and_texts and "text" in kinds):
        raise _Refused(f"{_kind(left)} cannot be compared with {_kind(right)}", node)
    try:
        with np.errstate(all="ignore"):
            return compare(left, right)
    except (TypeError, ValueError, OverflowError) as error:
        raise _Refused(f"the values cannot be compared ({error})", node) from None


def _kind(value: Any) -> str:
    """Return the type of a column or literal, for messages."""
    if isinstance(value, pd.Series):
        dtype = value.dtype
        for kind, holds in (
            ("truth value", types.is_bool_dtype),
            ("complex number", types.is_complex_dtype),
            ("number", types.is_numeric_dtype),
            ("date", types.is_datetime64_any_dtype),
            ("duration", types.is_timedelta64_dtype),
        ):
            if holds(dtype):
                return kind
        inferred = types.infer_dtype(value, skipna=True)
        return "text" if inferred in ("string", "empty") else f"values of type {inferred}"
    if isinstance(value, bool | np.bool_):
        return "truth value"
    return "text" if isinstance(value, str) else "number"


def _described(node: ast.expr) -> str:
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


def _position(text: str, offset: int) -> str:
    before = text.encode()[:offset].decode(errors="replace")
    return f" at character {len(before) + 1}"


def _excerpt(text: str) -> str:
    shown = 200
    return repr(text) if len(text) <= shown else f"{text[:shown]!r}..."


def _first(columns: pd.Index) -> str:
    more = (
        f" and {len(columns) - _MAX_NAMED_COLUMNS} more"
        if len(columns) > _MAX_NAMED_COLUMNS
        else ""
    )
    return ", ".join(map(str, columns[:_MAX_NAMED_COLUMNS])) + more
