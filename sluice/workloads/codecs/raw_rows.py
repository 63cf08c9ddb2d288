"""Codec of raw rows: the server computes the features with the workload's own code.

``compute_features`` also needs the later rows from which targets are computed, but a client does
not have them. The codec repeats the last row instead. This does not change the features: they use
only their row and earlier rows, which the POC gate checks.

Shape legend: B = elements of a request, L = rows of an element.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, StrictBool, StrictInt

from sluice.base.errors import ContractError, PayloadError
from sluice.base.format_range import format_range
from sluice.base.pluralize import pluralize
from sluice.data.dates import parse_dates
from sluice.data.folds import RowRange
from sluice.data.rows.protocol import (
    ModelInput,
    describe_input,
    input_length,
    input_parts,
    read_all_rows,
)
from sluice.data.schema import ColumnKind
from sluice.data.validation import validate_schema
from sluice.workloads.codecs.codec import Codec, to_json_text
from sluice.workloads.codecs.request import CodecRequest
from sluice.workloads.codecs.window_requests import (
    MAX_MAGNITUDE,
    require_columns,
)
from sluice.workloads.columns import as_label
from sluice.workloads.workload import Workload

Cell = StrictBool | StrictInt | FiniteFloat | Annotated[str, Field(max_length=10_000)] | None
RawRow = Annotated[list[Cell], Field(min_length=1, fail_fast=True)]
RawRows = Annotated[list[RawRow], Field(min_length=1, fail_fast=True)]

_DTYPES: dict[ColumnKind, type[np.generic]] = {
    "float": np.float64,
    "int": np.int64,
    "bool": np.bool_,
}


class RawRowsRequest(CodecRequest):
    """Body of a request with raw rows."""

    elements_field: ClassVar[str] = "rows"

    columns: list[str] = Field(
        min_length=1,
        max_length=100_000,
        fail_fast=True,
        description="Names of the values of a row, in any order, including the index.",
    )
    rows: list[RawRows] = Field(
        min_length=1,
        max_length=100_000,
        fail_fast=True,
        description="One list of consecutive raw rows for each prediction, the newest last. Times "
        "are ISO 8601 texts; null is a missing value, where the schema allows it.",
    )


class RawRowsCodec(Codec):
    """Codec of raw rows as ``load_rows`` returns them; the workload computes the features.

    The client sends the columns of ``raw_schema``, and the index if the index has a name. It does
    not send the columns in ``unknown``.

    Args:
        workload: Workload whose ``compute_features`` and ``examples`` are called.
        context_rows: Number of raw rows for one prediction: the newest row, and the earlier rows
            that the features and the input window use. The POC gate compares the features from
            this context with the features from the whole history.
        unknown: Values for the raw columns, or the index, that a client cannot know, such as the
            target.
        unknown_newest: Values for the raw columns that a client knows only for earlier rows, such
            as a target whose earlier values are features. They replace the values that the client
            sends for the newest row.
        as_labels: Whether numbers and booleans in text columns are converted to texts, such as 1 to
            "1". ``sluice.workloads.columns.as_labels`` does the same for the rows of a file.
        max_elements: Maximum number of predictions of a request. The features of all
            ``context_rows`` rows are computed for each prediction.

    Raises:
        ContractError: The workload cannot be served from raw rows.
    """

    kind: ClassVar[str] = "rows"
    request_type: ClassVar[type[CodecRequest]] = RawRowsRequest

    def __init__(
        self,
        workload: Workload,
        *,
        context_rows: int,
        unknown: Mapping[str, Any] | None = None,
        unknown_newest: Mapping[str, Any] | None = None,
        as_labels: bool = False,
        max_elements: int = 16,
    ) -> None:
        self._workload, self._context_rows = workload, context_rows
        self._unknown, self._unknown_newest = dict(unknown or {}), dict(unknown_newest or {})
        self._as_labels = as_labels
        self.max_elements = max_elements
        schema = workload.raw_schema
        workload_name = type(workload).__name__
        if min(context_rows, max_elements) < 1:
            raise ContractError(
                f"context_rows and max_elements must be at least 1, got {context_rows} and "
                f"{max_elements}.",
                fix="Correct the argument of RawRowsCodec.",
            )
        declared = {*schema.names, schema.index_name}
        sent_columns = set(schema.names) - self._unknown.keys()
        undeclared = [
            *(column for column in self._unknown if column not in declared),
            *(column for column in self._unknown_newest if column not in sent_columns),
        ]
        if undeclared:
            raise ContractError(
                f"'unknown' must name columns of the raw schema of {workload_name}, and "
                f"'unknown_newest' other columns of this schema, got {undeclared[0]!r}.",
                fix=f"The raw columns are {', '.join(schema.names)}.",
            )
        if workload.cluster_column is not None and context_rows > 1:
            raise ContractError(
                f"{workload_name} has the cluster column '{workload.cluster_column}', so the rows "
                f"before the newest row may belong to the same time, but context_rows is "
                f"{context_rows}.",
                fix="Set context_rows to 1 if the features of a row use this row alone; otherwise "
                "let clients send windows of features: WindowsCodec.",
            )
        if workload.horizon_rows and schema.index_kind in ("string", "bool"):
            raise ContractError(
                f"{workload_name} needs {workload.horizon_rows} later rows for its target, but its "
                f"index is of kind {schema.index_kind} and cannot be continued.",
                fix="Use an index of times or integers.",
            )
        self._kinds = {c.name: c.kind for c in schema.columns if c.name not in self._unknown}
        index_name = schema.index_name
        if index_name is not None and index_name not in (*self._kinds, *self._unknown):
            self._kinds[index_name] = schema.index_kind or "string"

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a request, the index included."""
        return tuple(self._kinds)

    def decode_request(self, request: RawRowsRequest) -> ModelInput:
        """Return the inputs of the newest row of every element.

        Raises:
            PayloadError: A column is missing or unknown; an element has too few or too many rows,
                or a value of another type; or the features of the rows cannot be computed.
        """
        require_columns(request.columns, self.columns, what="raw column")
        for number, rows in enumerate(request.rows):
            lengths = {len(row) for row in rows}
            if len(rows) != self._context_rows or lengths != {len(request.columns)}:
                raise PayloadError(
                    f"rows.{number} must have {self._context_rows} rows of "
                    f"{len(request.columns)} values, got {pluralize(len(rows), 'row')} of "
                    f"{format_range(min(lengths), max(lengths))} values.",
                    cause="The features of the newest row use the rows before it.",
                    fix="Send the newest row and the rows before it, with one value per column.",
                )
        decoded = [
            self._decode_element(pd.DataFrame(rows, columns=request.columns, dtype=object), number)
            for number, rows in enumerate(request.rows)
        ]
        return _join_inputs(decoded)

    def identity_parts(self) -> dict[str, str]:
        """Return the columns, the numbers of context and later rows, and the other settings."""
        parts = {
            "columns": to_json_text(self._kinds),
            "context_rows": to_json_text(self._context_rows),
            "unknown": to_json_text(self._unknown),
            "horizon_rows": to_json_text(self._workload.horizon_rows),
        }
        # These settings are omitted if they are not used. So the digests of codecs without these
        # settings are the same as in older releases.
        if self._unknown_newest:
            parts["unknown_newest"] = to_json_text(self._unknown_newest)
        if self._as_labels:
            parts["as_labels"] = to_json_text(self._as_labels)
        return parts

    def example(self) -> ModelInput:
        """Return the input for the last row of a small feature table of zeros."""
        workload = self._workload
        names = dict.fromkeys(
            (
                *workload.feature_columns,
                workload.target_column,
                *workload.feature_schema.names,
            )
        )
        length = workload.settings.seq_len
        frame = pd.DataFrame(0.0, index=range(length), columns=list(names))
        return read_all_rows(workload.examples(frame, RowRange(start=length - 1, stop=length)).x)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema with the columns and the number of rows."""
        schema = super().schema()
        properties = schema["properties"]
        properties["columns"]["items"]["enum"] = list(self.columns)
        properties["rows"]["items"]["minItems"] = self._context_rows
        properties["rows"]["items"]["maxItems"] = self._context_rows
        return schema

    def request_of(
        self, raw: pd.DataFrame, frame: pd.DataFrame, positions: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return the ``context_rows`` raw rows that end at each of the given rows.

        Raises:
            ContractError: A row has too few earlier rows, or the raw row of a row with features is
                ambiguous.
        """
        end_positions = self._raw_positions(raw, frame)[positions]
        if (end_positions < self._context_rows - 1).any():
            raise ContractError(
                f"A row must have {self._context_rows - 1} raw rows before it, got "
                f"{int(end_positions.min())} for row "
                f"{frame.index[positions[int(end_positions.argmin())]]}.",
                fix="Choose later rows, or lower context_rows.",
            )
        index = self._workload.raw_schema.index_name
        table = raw.assign(**{index: raw.index}) if index is not None else raw
        columns = list(self.columns)
        contexts = [
            table.iloc[end_position + 1 - self._context_rows : end_position + 1]
            for end_position in end_positions.tolist()
        ]
        rows = [
            [[_to_json_value(value) for value in row] for row in context[columns].to_numpy(object)]
            for context in contexts
        ]
        for element in rows:
            for column in self._unknown_newest:
                element[-1][columns.index(column)] = None
        return {"columns": columns, "rows": rows}

    def _raw_positions(self, raw: pd.DataFrame, frame: pd.DataFrame) -> NDArray[np.int64]:
        """Return the position of the raw row of each row with features.

        If several raw rows have one label, all raw rows with a target must have features.

        Raises:
            ContractError: Several raw rows have one label, and other raw rows have features.
        """
        if raw.index.is_unique:
            return raw.index.get_indexer(frame.index)
        target = self._workload.target_column
        has_target = raw[target].notna().to_numpy() if target in raw else np.full(len(raw), True)
        positions = np.flatnonzero(has_target)
        if not raw.index[positions].equals(frame.index):
            raise ContractError(
                f"Several raw rows of {type(self._workload).__name__} have the same label, so all "
                f"{len(positions)} raw rows with a target must have features, in the same order, "
                f"got {len(frame)} rows with features.",
                cause="compute_features omits or reorders rows.",
                fix="Keep these rows and their order, or let clients send windows of features: "
                "return Workload.codec(self) in codec().",
            )
        return positions

    def watched_values(
        self,
        request: RawRowsRequest,  # noqa: ARG002 - the decoded windows are sufficient
        x: ModelInput,
    ) -> tuple[float, ...]:
        """Return the newest row of the first window, if inputs are windows of features."""
        if not isinstance(x, torch.Tensor) or x.ndim != 3:
            return ()
        has_columns = x.shape[2] == len(self._workload.feature_columns)
        return tuple(x[0, -1].tolist()) if has_columns else ()

    def _decode_element(self, cells: pd.DataFrame, number: int) -> ModelInput:
        workload, name = self._workload, f"rows.{number}"
        raw = self._convert_rows(cells, name)
        try:
            validate_schema(raw, workload.raw_schema, name)
            features = workload.compute_features(_append_later_rows(raw, workload.horizon_rows))
            positions = np.flatnonzero(features.index == raw.index[-1])
            if len(positions) != 1:
                raise PayloadError(
                    f"The newest row of {name} must have features, but compute_features returns "
                    f"{len(positions)} rows for it.",
                    cause="A value is missing, or the workload drops the row for another reason.",
                    fix="Send complete rows.",
                )
            position = int(positions[0])
            newest_row = RowRange(start=position, stop=position + 1)
            examples = workload.examples(features, newest_row)
            inputs = read_all_rows(examples.x)
        except PayloadError:
            raise
        except ContractError as error:
            raise PayloadError(
                f"The features of {name} cannot be computed: {error.what}",
                fix="Correct the rows; GET /model lists the columns and their number.",
            ) from error
        except Exception as error:  # user code may raise anything for the rows of a client
            raise PayloadError(
                f"The features of {name} cannot be computed: {type(error).__name__}.",
                cause="The workload's code does not accept these rows.",
                fix="Correct the rows, or report the error to the owner of the model.",
            ) from error
        if input_length(inputs) != 1:
            raise PayloadError(
                f"The newest row of {name} must become one input, but examples() returns "
                f"{describe_input(inputs)}.",
                cause="The workload omits the row, or makes several examples of it.",
                fix="Send other rows, or report the error to the owner of the model.",
            )
        if not all(_is_within_magnitude(part) for part in input_parts(inputs)):
            raise PayloadError(
                f"The features of {name} must be finite with magnitudes of at most "
                f"{MAX_MAGNITUDE:.3g}, got other values in {describe_input(inputs)}.",
                cause="A value is missing, or is far outside the training data.",
                fix="Check the values and their units.",
            )
        return inputs

    def _convert_rows(self, cells: pd.DataFrame, name: str) -> pd.DataFrame:
        """Return the rows with the dtypes and the index of the raw schema."""
        schema = self._workload.raw_schema
        for column, value in self._unknown_newest.items():
            cells.loc[len(cells) - 1, column] = value
        if self._as_labels:
            text_columns = [column for column, kind in self._kinds.items() if kind == "string"]
            cells[text_columns] = cells[text_columns].map(as_label, na_action="ignore")
        typed_rows = pd.DataFrame(
            {
                column: _convert_column(cells[column], kind, f"{name}, column '{column}'")
                for column, kind in self._kinds.items()
            }
        )
        for column, value in self._unknown.items():
            typed_rows[column] = value
        columns = [*schema.names]
        if schema.index_name is None:
            return typed_rows[columns]
        index = typed_rows[schema.index_name]
        return typed_rows[columns].set_axis(pd.Index(index, name=schema.index_name), axis=0)


def _convert_column(values: "pd.Series[Any]", kind: ColumnKind, name: str) -> "pd.Series[Any]":
    """Return the cells of a column with the dtype of its kind; nulls become missing values.

    Raises:
        PayloadError: A cell has another type.
    """
    accepted_types: dict[ColumnKind, tuple[type, ...]] = {
        "float": (int, float),
        "int": (int,),
        "bool": (bool,),
        "string": (str,),
        "datetime": (str,),
    }
    for row, value in enumerate(values):
        is_unexpected_bool = isinstance(value, bool) and kind != "bool"
        if value is not None and (
            is_unexpected_bool or not isinstance(value, accepted_types[kind])
        ):
            raise PayloadError(
                f"Row {row} of {name} must be of kind {kind}, got {type(value).__name__}.",
                fix="Send numbers as JSON numbers, and times as ISO 8601 texts.",
            )
    try:
        if kind == "datetime":
            return parse_dates(values)
        if kind == "string":
            return values.astype("str") if values.notna().all() else values
        if values.isna().any():
            return values.astype("float64")  # validation of the schema reports the missing value
        dtype = _DTYPES[kind]
        return pd.Series(values.to_numpy().astype(dtype), index=values.index)
    except (ValueError, TypeError, OverflowError) as error:
        raise PayloadError(
            f"A value of {name} cannot be converted to {kind}: {type(error).__name__}.",
            fix="Send numbers as JSON numbers, and times as ISO 8601 texts.",
        ) from None


def _append_later_rows(raw: pd.DataFrame, num_rows: int) -> pd.DataFrame:
    """Return the rows, and ``num_rows`` copies of the last row with later index labels."""
    if not num_rows:
        return raw
    index = raw.index
    spacing = cast("Any", 1)
    if isinstance(index, pd.DatetimeIndex):
        spacing = index[-1] - index[-2] if len(index) > 1 else pd.Timedelta(days=1)
    labels = [index[-1] + spacing * number for number in range(1, num_rows + 1)]
    later = raw.iloc[[-1] * num_rows].set_axis(pd.Index(labels, name=index.name), axis=0)
    return pd.concat([raw, later])


def _join_inputs(inputs: list[ModelInput]) -> ModelInput:
    """Return the inputs of all elements as one batch."""
    first_input = inputs[0]
    try:
        if isinstance(first_input, torch.Tensor):
            return torch.cat([x for x in inputs if isinstance(x, torch.Tensor)])
        dicts = [x for x in inputs if isinstance(x, dict)]
        return {name: torch.cat([x[name] for x in dicts]) for name in first_input}
    except (RuntimeError, KeyError):
        shapes = sorted({describe_input(x) for x in inputs})
        raise PayloadError(
            f"The inputs of a request must have one shape, got {' and '.join(shapes[:2])}.",
            fix="Send one element per request.",
        ) from None


def _is_within_magnitude(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point():
        return True
    return bool((tensor.abs() <= MAX_MAGNITUDE).all())  # False for NaN


def _to_json_value(value: Any) -> Any:
    """Return a cell as plain JSON."""
    if value is None or value is pd.NaT or value is pd.NA or value != value:  # NaN
        return None
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    return value.item() if isinstance(value, np.generic) else value
