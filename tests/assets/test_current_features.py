"""Features are refused with other raw rows or another workload."""

import pytest

from sluice.assets.features import FeatureSet, require_current_features
from sluice.assets.receipt_subjects import feature_producer
from sluice.base.errors import GateBlocked
from sluice.data.table import TableRecord
from tests.support.synthetic import SineWorkload


def make_table(digest: str) -> TableRecord:
    return TableRecord(
        digest=digest * 64,
        artifact="",
        num_rows=1,
        columns=(),
        first_label="0",
        last_label="0",
    )


def test_refusal_names_the_differing_part_and_both_digests():
    workload = SineWorkload()
    maker = feature_producer(workload, path="module:Sine")
    features = FeatureSet(table=make_table("f"), raw="a" * 64, maker=maker, folds=())
    other = features.model_copy(update={"maker": "b" * 64})

    require_current_features(features, make_table("a"), workload, path="module:Sine")
    with pytest.raises(GateBlocked, match=r"features' raw rows must .*c{12}.* is a{12}\."):
        require_current_features(features, make_table("c"), workload, path="module:Sine")
    with pytest.raises(GateBlocked, match=rf"The features must .*{maker[:12]}.* is b{{12}}\."):
        require_current_features(other, make_table("a"), workload, path="module:Sine")
