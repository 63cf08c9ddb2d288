"""Arrays that a workload fits on the train rows of a fold, such as a vocabulary or a normaliser.

They are buffers of the network's ``InputEncoder``, so they are stored in the file of the weights,
and the digest of the weights covers them.
"""

import copy
import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sluice.base.digests import digest_bytes, digest_json
from sluice.base.errors import ContractError
from sluice.base.seeding import RandomStream, derive_seed
from sluice.data.folds import Fold
from sluice.models.input_encoder import Encode, InputEncoder
from sluice.workloads.workload import Workload

_ARRAY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
"""Valid names of the arrays; they become names of tensors in the file of the weights."""


def has_fitted_state(workload: Workload) -> bool:
    """Return whether the workload fits a state on train rows.

    Raises:
        ContractError: The workload overrides only one of ``fit`` and ``encode``.
    """
    overrides = {
        name: getattr(type(workload), name) is not getattr(Workload, name)
        for name in ("fit", "encode")
    }
    if len(set(overrides.values())) > 1:
        (implemented,) = (name for name, is_overridden in overrides.items() if is_overridden)
        (missing,) = (name for name, is_overridden in overrides.items() if not is_overridden)
        raise ContractError(
            f"{type(workload).__name__} must implement both fit() and encode(), but implements "
            f"only {implemented}().",
            cause="fit() returns what encode() applies to the inputs.",
            fix=f"Implement {missing}(), or remove {implemented}().",
        )
    return overrides["fit"]


def fit_workload(workload: Workload, frame: pd.DataFrame, fold: Fold) -> Workload:
    """Return the workload with the state that it fits on the fold's train rows.

    A workload without ``fit`` is returned unchanged. The state depends on the train rows only: the
    caller's random generators are neither used nor changed.

    Args:
        workload: The workload; it is not changed.
        frame: Feature frame.
        fold: Fold whose train rows are passed to ``fit``.

    Raises:
        ContractError: ``fit`` does not return arrays by name.
    """
    if not has_fitted_state(workload):
        return workload
    fitted_workload = copy.copy(workload)
    fitted_workload.fitted_state = fit_state(
        workload, frame.iloc[fold.train.start : fold.train.stop]
    )
    return fitted_workload


def fit_state(workload: Workload, train_frame: pd.DataFrame) -> dict[str, Tensor]:
    """Return what ``fit`` returns for train rows, as tensors in the order of their names.

    Args:
        workload: Workload with ``fit``.
        train_frame: Train rows of the feature frame; ``fit`` gets a copy.

    Raises:
        ContractError: ``fit`` does not return arrays by name.
    """
    with RandomStream(derive_seed(0, "fit")).active():
        arrays: Any = workload.fit(train_frame.copy())
    source = f"fit() of {type(workload).__name__}"
    if not isinstance(arrays, Mapping) or not arrays:
        raise ContractError(
            f"{source} must return a dict of at least one array, got "
            f"{'an empty dict' if isinstance(arrays, Mapping) else type(arrays).__name__}.",
            fix="Return the arrays that encode() needs, by name.",
        )
    invalid_names = [
        name for name in arrays if not isinstance(name, str) or not _ARRAY_NAME.fullmatch(name)
    ]
    if invalid_names:
        raise ContractError(
            f"{source} must name its arrays with letters, digits and underscores, got "
            f"{invalid_names[0]!r}.",
            fix="Rename the array.",
        )
    return {name: _as_tensor(arrays[name], f"{source}: '{name}'") for name in sorted(arrays)}


def digest_state(state: Mapping[str, Tensor]) -> str:
    """Return the digest of fitted arrays: their names, dtypes, shapes and bits."""
    return digest_json(
        {
            name: [str(array.dtype), list(array.shape), digest_bytes(array.numpy().tobytes())]
            for name, array in state.items()
        }
    )


def fitted_encoder(workload: Workload) -> InputEncoder | None:
    """Return the encoder of a fitted workload; None for a workload without ``fit``.

    Raises:
        ContractError: The workload has ``fit``, and ``fit`` was not called.
    """
    if not has_fitted_state(workload):
        return None
    if workload.fitted_state is None:
        raise ContractError(
            f"fit() of {type(workload).__name__} must be called before a network is built.",
            fix="Use the workload that fit_workload(workload, frame, fold) returns.",
        )
    return InputEncoder(encode_of(workload), workload.fitted_state)


def encode_of(workload: Workload) -> Encode:
    """Return a function that encodes inputs with the workload and checks the result's type."""
    return functools.partial(_encode, workload)


def _encode(workload: Workload, x: Any, state: Mapping[str, Tensor]) -> Any:
    encoded: Any = workload.encode(x, state)
    tensors = encoded.values() if isinstance(encoded, dict) else [encoded]
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise ContractError(
            f"encode() of {type(workload).__name__} must return a tensor or a dict of tensors, got "
            f"{type(encoded).__name__}.",
            fix="Return the inputs of the network.",
        )
    return encoded


def _as_tensor(value: Any, name: str) -> Tensor:
    """Return a copy of an array as a tensor; double precision becomes single precision."""
    try:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        tensor = torch.from_numpy(np.array(array, order="C"))
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"{name} must be an array of numbers, got {type(value).__name__} ({error}).",
            cause="The state is stored with the weights of the network, which are tensors.",
            fix="Return numbers. Represent texts by integers, for example with "
            "pd.util.hash_array(values).view('int64').",
        ) from None
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise ContractError(
            f"{name} must be finite, but contains NaN or infinity.",
            cause="A column of the train rows has missing values, or is constant and was used as a "
            "divisor.",
            fix="Fill or drop the missing values in compute_features.",
        )
    return tensor
