"""The row protocol: how inputs are read for chosen examples.

A *row source* has a length, and returns the input of a network for chosen examples. A tensor of
shape (N, ...) is a row source. Other sources read files, and only the chosen rows are in memory.

Shape legend: N = examples of a source, B = chosen examples.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from sluice.base.errors import ContractError

ModelInput = Tensor | dict[str, Tensor]
"""Input of a network for B examples: one tensor (B, ...), or several by the names of the
parameters of ``forward()``."""


@runtime_checkable
class RowSource(Protocol):
    """Inputs of N examples, read when they are needed.

    Reading must be a function of the chosen rows only: the same rows give the same bits, in any
    process, at any time.
    """

    def __len__(self) -> int:
        """Return the number of examples (N), which must not change."""
        ...

    def __getitem__(self, rows: Tensor, /) -> ModelInput:
        """Return the input of the chosen examples, in the order of ``rows``.

        Args:
            rows: Positions of the examples, int64 (B,), from 0 to N - 1; may repeat.
        """
        ...


class DictRows:
    """A dict of tensors in memory as a row source.

    Args:
        tensors: Tensors (N, ...) by the names of the parameters of ``forward()``.
        lengths: Length of each example before padding, int64 (N,), such as its number of tokens;
            None if examples have no length.

    Raises:
        ContractError: There is no tensor, or the lengths differ.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, lengths: Tensor | None = None) -> None:
        sizes = {name: len(tensor) for name, tensor in tensors.items()}
        if len(set(sizes.values())) != 1:
            raise ContractError(
                f"A dict of inputs needs tensors of one length, got {sizes or 'no tensor'}.",
                fix="Return a tensor with one entry per example for every parameter of forward().",
            )
        self.tensors = dict(tensors)
        self.lengths = lengths

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, rows: Tensor, /) -> dict[str, Tensor]:
        return {name: tensor.index_select(0, rows) for name, tensor in self.tensors.items()}


def gather(source: RowSource | Tensor, rows: Tensor) -> ModelInput:
    """Return the input of the chosen examples.

    Args:
        source: A tensor (N, ...) or another row source.
        rows: Positions of the examples, int64 (B,).

    Raises:
        ContractError: The source returned something other than tensors with B entries.
    """
    if isinstance(source, Tensor):
        return source.index_select(0, rows.to(source.device))
    batch = source[rows]
    if _is_input(batch, len(rows)):
        return batch
    raise ContractError(
        f"{type(source).__name__} must return a tensor with {len(rows)} entries, or a dict of such "
        f"tensors by name, for {len(rows)} rows; got {describe_input(batch)}.",
        cause="Its __getitem__ gets the positions of all examples of a batch at once.",
        fix="Return one entry per position, in the order of the positions.",
    )


def gather_tensor(source: RowSource | Tensor, rows: Tensor, *, what: str) -> Tensor:
    """Return the chosen rows of a source that must return one tensor.

    Args:
        source: A tensor (N, ...) or another row source.
        rows: Positions of the examples, int64 (B,).
        what: What the rows are, for the message.

    Raises:
        ContractError: The source did not return one tensor with B entries.
    """
    batch = gather(source, rows)
    if isinstance(batch, Tensor):
        return batch
    raise ContractError(
        f"The {what} must be one tensor, got {describe_input(batch)}.",
        fix="Only inputs may be a dict; stack several targets along the last axis.",
    )


def gather_targets(source: RowSource | Tensor, rows: Tensor) -> Tensor:
    """Return the targets of the chosen examples, as ``gather_tensor`` does."""
    return gather_tensor(source, rows, what="targets")


def spread_rows(num_rows: int, max_rows: int) -> Tensor:
    """Return at most ``max_rows`` evenly spaced positions of ``num_rows``, int64.

    Neighbouring rows of a time series are nearly equal, but evenly spaced rows cover the whole
    period.
    """
    if num_rows <= max_rows:
        return torch.arange(num_rows)
    return torch.from_numpy(np.linspace(0, num_rows - 1, max_rows).round().astype(np.int64))


def read_all_rows(source: RowSource | Tensor) -> ModelInput:
    """Return the input of every example; for sources that fit into memory."""
    if isinstance(source, Tensor):
        return source
    if isinstance(source, DictRows):
        return source.tensors
    return gather(source, _all_positions(source))


def read_all_as_tensor(source: RowSource | Tensor, *, what: str) -> Tensor:
    """Return every row of a source that must return one tensor; see ``gather_tensor``."""
    if isinstance(source, Tensor):
        return source
    return gather_tensor(source, _all_positions(source), what=what)


def as_row_source(inputs: ModelInput, *, lengths: Tensor | None = None) -> Tensor | DictRows:
    """Return gathered inputs as a row source; a dict keeps the lengths of its examples."""
    return inputs if isinstance(inputs, Tensor) else DictRows(inputs, lengths=lengths)


LengthsOf = Callable[[Tensor], Tensor]
"""Function of positions, int64 (B,), that returns the lengths of these examples, int64 (B,)."""


def find_lengths(source: object) -> LengthsOf | None:
    """Return the function that returns the lengths of chosen examples of a row source.

    The function calls the method ``lengths_of(rows)`` of the source, which ``TokenRows`` has. If
    there is no such method, it reads the attribute ``lengths``, a tensor or an array with one
    integer per example. Without this attribute, the result is None.
    """
    lengths_of: Any = getattr(source, "lengths_of", None)
    if lengths_of is not None:
        return lambda rows: torch.as_tensor(lengths_of(rows))
    lengths: Any = getattr(source, "lengths", None)
    if not isinstance(lengths, Tensor | np.ndarray):
        return None
    return lambda rows: torch.as_tensor(lengths[rows.numpy()])


def input_parts(inputs: ModelInput) -> tuple[Tensor, ...]:
    """Return the tensors of an input, in the order of their names."""
    return (
        (inputs,) if isinstance(inputs, Tensor) else tuple(inputs[name] for name in sorted(inputs))
    )


def move_input(inputs: ModelInput, device: torch.device) -> ModelInput:
    """Return the input on a device."""
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def slice_input(inputs: ModelInput, start: int, stop: int) -> ModelInput:
    """Return the examples ``start`` to ``stop`` of an input, without a copy."""
    if isinstance(inputs, Tensor):
        return inputs[start:stop]
    return {name: tensor[start:stop] for name, tensor in inputs.items()}


def input_length(inputs: ModelInput) -> int:
    """Return B, the number of examples of an input."""
    return len(input_parts(inputs)[0])


def split_input(inputs: ModelInput, size: int) -> Iterator[ModelInput]:
    """Yield parts of at most ``size`` examples."""
    for start in range(0, input_length(inputs), size):
        yield slice_input(inputs, start, start + size)


def flat_input(inputs: ModelInput) -> Tensor:
    """Return an input as a matrix (B, P); tensors of a dict are joined in the order of names."""
    flat = [part.reshape(len(part), -1) for part in input_parts(inputs)]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)


def describe_input(value: object) -> str:
    """Return types and shapes as text, such as ``{'ids': int64 (32, 17)}``."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name!r}: {describe_input(part)}" for name, part in value.items())
        return f"{{{inner}}}"
    return type(value).__name__


def _all_positions(source: RowSource) -> Tensor:
    return torch.arange(len(source))


def _is_input(value: object, num_rows: int) -> TypeGuard[ModelInput]:
    if isinstance(value, Tensor):
        return value.ndim > 0 and len(value) == num_rows
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(name, str) and isinstance(part, Tensor) and _is_input(part, num_rows)
            for name, part in value.items()
        )
    )
