"""Converts the samples of the servers to tables for drift detection.

Failed requests are excluded: they are sampled more often than other requests, and the rollout
guards count them. Repeated requests for the same row count once, except for latencies.

Shape legend: N = samples, O = outputs, E = width of an embedding.
"""

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.rollout.samples import Sample


def production_samples(samples: Sequence[Sample], after: datetime) -> list[Sample]:
    """Return the samples later than ``after`` that the production arm answered without an error."""
    return [s for s in samples if s.at > after and s.fault is None and s.production is not None]


def request_frame(samples: Sequence[Sample], columns: Sequence[str]) -> pd.DataFrame:
    """Return the feature values of each request, indexed by the time of the request.

    For a window, these are the values of its newest row. Requests with another number of columns,
    such as those for an older version, are excluded.
    """
    matching_samples = [s for s in _distinct(samples) if len(s.features) == len(columns)]
    values = np.array([s.features for s in matching_samples]).reshape(
        len(matching_samples), len(columns)
    )
    return pd.DataFrame(values, columns=list(columns), index=_times(matching_samples))


def prediction_frame(samples: Sequence[Sample], columns: Sequence[str]) -> pd.DataFrame:
    """Return the predictions of production (mean of its networks), indexed by time."""
    distinct_samples = _distinct(samples)
    predictions = [np.mean(s.production or ((),), axis=0) for s in distinct_samples]
    valid_positions = [n for n, output in enumerate(predictions) if output.shape == (len(columns),)]
    values = np.array([predictions[n] for n in valid_positions]).reshape(
        len(valid_positions), len(columns)
    )
    return pd.DataFrame(
        values, columns=list(columns), index=_times([distinct_samples[n] for n in valid_positions])
    )


def embedding_rows(
    samples: Sequence[Sample], network: str, width: int
) -> tuple[pd.DatetimeIndex, NDArray[np.float64]]:
    """Return the times of the requests embedded by a network, and their embeddings (N, E)."""
    embedded_samples = [
        s
        for s in samples
        if s.embedding and s.embedding.network == network and len(s.embedding.values) == width
    ]
    distinct_samples = _distinct(embedded_samples)
    rows = [s.embedding.values for s in distinct_samples if s.embedding]
    return _times(distinct_samples), np.array(rows, np.float64).reshape(len(rows), width)


def latencies(samples: Sequence[Sample]) -> "pd.Series[float]":
    """Return the latency of the requests routed to production [s], indexed by time."""
    timed_samples = [s for s in samples if s.arm == "production" and s.seconds > 0]
    return pd.Series(
        [s.seconds for s in timed_samples], index=_times(timed_samples), name="seconds", dtype=float
    )


def prediction_columns(num_outputs: int) -> tuple[str, ...]:
    """Return the column names of a model's outputs.

    >>> prediction_columns(1), prediction_columns(2)
    (('prediction',), ('prediction 0', 'prediction 1'))
    """
    if num_outputs == 1:
        return ("prediction",)
    return tuple(f"prediction {i}" for i in range(num_outputs))


def _distinct(samples: Sequence[Sample]) -> list[Sample]:
    """Return the first sample of each requested row."""
    sample_by_row: dict[object, Sample] = {}
    for sample in samples:
        sample_by_row.setdefault(sample.key or sample.content or sample.features, sample)
    return list(sample_by_row.values())


def _times(samples: Sequence[Sample]) -> pd.DatetimeIndex:
    # The unit is set, because an index without samples would have seconds, and could not be
    # compared with a label with microseconds.
    return pd.DatetimeIndex([s.at for s in samples], name="at", tz="UTC").as_unit("us")
