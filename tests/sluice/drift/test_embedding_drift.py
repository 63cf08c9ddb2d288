"""Drift of the embedding of the network, and the stored reference of it."""

import dataclasses
import io

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, IntegrityError
from sluice.config.drift_settings import DriftSettings, EmbeddingDriftSettings
from sluice.data.rows.protocol import gather
from sluice.drift.embedding_drift import evaluate_embeddings
from sluice.drift.embedding_page import EmbeddingWindow
from sluice.drift.embedding_reference import (
    EmbeddingReference,
    build_embedding_reference,
    compares_embeddings,
    load_embedding_reference,
    save_embedding_reference,
)
from sluice.drift.reference import no_progress
from sluice.drift.reference_file import reference_bytes
from sluice.models.embedding import embed
from sluice.workloads.sentences import SentencesWorkload
from tests.sluice.drift.frames import make_frame, make_reference
from tests.sluice.serving.codec_samples import codec_lineage, make_workload, networks

SETTINGS = DriftSettings()


def make_embedding_reference(rows: np.ndarray) -> EmbeddingReference:
    return EmbeddingReference(network="n", layer="head", rows_NE=rows.astype(np.float32))


def evaluate(reference, window, settings=SETTINGS, **embedding):
    return evaluate_embeddings(
        make_embedding_reference(reference),
        window,
        settings,
        EmbeddingDriftSettings(**embedding),
        window="w",
        seed=0,
    )


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 6)), rng.normal(size=(250, 6))


def test_only_a_shifted_embedding_drifts(samples):
    reference, window = samples

    stable, shifted = evaluate(reference, window), evaluate(reference, window + 0.4)

    assert stable.verdict == "STABLE"
    assert (shifted.verdict, shifted.layer, shifted.network) == ("DRIFT", "head", "n")
    assert shifted.mmd_squared > shifted.threshold > stable.mmd_squared
    assert "embedding of the network drifted" in shifted.reason
    assert (shifted.num_rows, shifted.reference_rows) == (250, 300)
    assert shifted.block_length == 7  # the cube root of 300, rounded up


def test_a_significant_discrepancy_below_min_discrepancy_is_not_drift(samples):
    reference, window = samples
    shifted = evaluate(reference, window + 0.4)

    allowed = evaluate(reference, window + 0.4, min_discrepancy=shifted.mmd_squared * 1.01)
    limited = evaluate(reference, window + 0.4, min_discrepancy=shifted.mmd_squared * 0.99)

    assert (allowed.verdict, limited.verdict) == ("STABLE", "DRIFT")
    assert "not larger than allowed" in allowed.reason


def test_samples_and_permutations_are_bounded_by_the_settings(samples):
    reference, window = samples
    strict = DriftSettings(alpha=0.001)

    small = evaluate(reference, window, max_rows=150, min_permutations=99)

    assert (small.num_rows, small.reference_rows, small.num_permutations) == (150, 150, 134)
    assert evaluate(reference, window, settings=strict).num_permutations == 4000


def test_too_few_rows_and_dependent_rows_are_inconclusive(samples):
    reference, window = samples
    walk = np.cumsum(np.random.default_rng(1).normal(size=(120, 6)), axis=0)

    few = evaluate(reference, window[:50])
    dependent = evaluate(reference, walk, settings=DriftSettings(min_blocks=8))

    assert few.verdict == dependent.verdict == "INCONCLUSIVE"
    assert "50 different rows of the window are compared, required 100" in few.reason
    assert 8 * dependent.block_length > 120
    assert np.isnan(dependent.p_value)


def test_the_page_of_a_test_that_did_not_run_prints_no_nan(samples):
    reference, window = samples
    few = window[:20].astype(np.float64)
    report = evaluate(reference, few)

    numbers = EmbeddingWindow(report=report, reference_NE=reference, window_NE=few).numbers

    assert numbers["squared maximum mean discrepancy"] == "not computed"
    assert numbers["bandwidth of the kernel (median distance)"] == "not computed"
    assert "nan" not in numbers.values()


def test_a_constant_embedding_is_inconclusive():
    constant = evaluate(np.ones((200, 3)), np.ones((200, 3)))

    assert constant.verdict == "INCONCLUSIVE"
    assert "are equal" in constant.reason


def test_too_few_blocks_for_the_p_value_are_inconclusive():
    rng = np.random.default_rng(0)
    strict = DriftSettings(alpha=1e-7, min_rows=30, min_blocks=2)

    report = evaluate(rng.normal(size=(30, 2)), rng.normal(9, size=(30, 2)), settings=strict)

    assert report.verdict == "INCONCLUSIVE"
    assert "with blocks of 6 rows, no p-value is as small as 1e-07" in report.reason


def test_embeddings_of_another_width_or_with_nan_are_refused(samples):
    reference, window = samples

    with pytest.raises(ContractError, match="of the same width"):
        evaluate(reference, window[:, :3])
    with pytest.raises(ContractError, match="finite"):
        evaluate(reference, np.where(window > 2.5, np.nan, window))


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    """A workload of texts, its artifact store, and the lineage of its two networks."""
    folder = tmp_path_factory.mktemp("built")
    workload, store = make_workload("texts", folder / "data"), ArtifactStore(folder / "artifacts")
    text_networks = networks(workload, salt=1)
    return (
        workload,
        store,
        codec_lineage(workload, store, salt=1, trained=text_networks),
        text_networks,
    )


def build_reference(text_model, *, network: nn.Module | None = None, max_rows=500, **settings):
    workload, _, lineage, text_networks = text_model
    frame = workload.compute_features(workload.load_rows())
    by_weights = {m.weights: n for m, n in zip(lineage.members, text_networks, strict=True)}
    return build_embedding_reference(
        workload,
        frame,
        workload.plan_folds(frame),
        lineage.members,
        lambda member: network or by_weights[member.weights],
        DriftSettings(min_rows=30, **settings),
        max_rows=max_rows,
        on_progress=no_progress,
    )


def test_the_reference_has_the_embeddings_of_held_out_rows_by_the_first_network(text_model):
    workload, _, lineage, text_networks = text_model
    frame = workload.compute_features(workload.load_rows())
    test = workload.plan_folds(frame)[-1].test
    x = workload.examples(frame, test).x

    reference, limited = build_reference(text_model), build_reference(text_model, max_rows=40)

    assert reference.network == lineage.members[0].weights
    assert reference.layer == "out"
    expected = [
        embed(text_networks[0], gather(x, torch.tensor([n]))).values[0] for n in range(len(x))
    ]
    unique_rows = list(dict.fromkeys(tuple(row) for row in np.array(expected).tolist()))
    assert sorted(map(tuple, reference.rows_NE.tolist())) == sorted(unique_rows)
    assert 30 <= len(limited.rows_NE) <= 40


def test_the_reference_of_a_network_without_a_linear_layer_states_the_problem(text_model):
    class Counts(nn.Module):
        def forward(self, x):
            return x["mask"].float().sum(1, keepdim=True)

    store = text_model[1]
    reference = build_reference(text_model, network=Counts())
    loaded = load_embedding_reference(save_embedding_reference(reference, store), store)

    assert loaded.rows_NE.size == 0
    assert "Counts has no embedding, because its forward() calls no nn.Linear" in loaded.problem
    assert "embedding_layer" in loaded.problem


def test_a_stored_reference_is_read_back_and_a_changed_file_is_refused(text_model, tmp_path):
    store, reference = ArtifactStore(tmp_path), build_reference(text_model)
    digest = save_embedding_reference(reference, store)
    loaded = load_embedding_reference(digest, store)

    np.testing.assert_array_equal(loaded.rows_NE, reference.rows_NE)
    assert (loaded.network, loaded.layer, loaded.problem) == (
        reference.network,
        reference.layer,
        "",
    )
    assert save_embedding_reference(loaded, store) == digest
    table = pq.read_table(io.BytesIO(store.get(digest)))
    shuffled = io.BytesIO()
    pq.write_table(table.take([1, 0, *range(2, len(table))]), shuffled)
    changed = shuffled.getvalue()
    infinite = dataclasses.replace(reference, rows_NE=np.full((40, 3), np.inf, np.float32))
    empty = dataclasses.replace(reference, rows_NE=np.empty((0, 0), np.float32))
    for wrong, message in ((infinite, "not finite"), (empty, "numbers and the problem")):
        with pytest.raises(IntegrityError, match=message):
            load_embedding_reference(save_embedding_reference(wrong, store), store)
    for content in (
        changed,
        store.get(digest)[:-9],
        b"",
        reference_bytes(make_reference(make_frame(0, 200))),
    ):
        with pytest.raises(IntegrityError):
            load_embedding_reference(store.put(content), store)


def test_only_images_and_texts_in_requests_are_embedded(text_model, tmp_path):
    kinds = {
        kind: compares_embeddings(make_workload(kind, tmp_path / kind), SETTINGS)
        for kind in ("texts", "images", "rows")
    }

    assert kinds == {"texts": True, "images": True, "rows": False}
    assert not compares_embeddings(text_model[0], DriftSettings(embedding=None))
    assert compares_embeddings(SentencesWorkload(), SETTINGS)
    unserved = type("Unserved", (SentencesWorkload,), {"is_served": False})()
    assert not compares_embeddings(unserved, SETTINGS)
