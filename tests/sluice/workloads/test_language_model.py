"""Language model workloads, whose logits are computed in chunks and never kept for a split."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sluice.base.errors import PayloadError
from sluice.config.poc_settings import PocSettings
from sluice.data.folds import FoldSettings, RowRange
from sluice.data.rows import write_tokens
from sluice.drift.reference_store import _predict_held_out_in_chunks
from sluice.evaluation.outputs import ensemble_losses
from sluice.evaluation.scoring import score_baseline, score_candidate
from sluice.evaluation.simple_rules import BaselineSettings, choose_baseline
from sluice.failfast.data.constant_columns import find_constant_features
from sluice.training import prediction
from sluice.training.members import Member
from sluice.training.prediction import mean_loss, row_losses, rows_per_chunk
from sluice.workloads.examples import Examples
from sluice.workloads.language_model import (
    BigramRows,
    LanguageModelSettings,
    LanguageModelWorkload,
    bigram_log_probs,
)
from sluice.workloads.sentences import SentencesWorkload
from tests.sluice.evaluation.scored_workload import make_member

VOCAB = 7


class ChunkedWorkload(LanguageModelWorkload):
    """Workload without kept outputs, so scores are computed in chunks."""

    folder = None
    vocab_size = VOCAB

    @property
    def tokens_path(self):
        return self.folder


class KeepOutputsWorkload(ChunkedWorkload):
    """The same workload with ``keep_outputs``, as a reference without chunks."""

    keep_outputs = True


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    rng = np.random.default_rng(0)
    write_tokens(
        path, (rng.integers(0, VOCAB, rng.integers(3, 30)) for _ in range(120)), vocab_size=VOCAB
    )
    return path


@pytest.fixture
def workloads(folder, monkeypatch):
    monkeypatch.setattr(ChunkedWorkload, "folder", folder)
    settings = LanguageModelSettings(block_len=8, folds=FoldSettings(num_folds=2, embargo_rows=1))
    return ChunkedWorkload(settings), KeepOutputsWorkload(settings)


class PositionModel(nn.Module):
    """Outputs that depend on the seed, the token and its position."""

    max_rows = 0

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(VOCAB, VOCAB)

    def forward(self, ids):
        PositionModel.max_rows = max(PositionModel.max_rows, len(ids))
        return self.table(ids) * (1 + torch.arange(ids.shape[1])[:, None] / 10)


def load_model(to_load: Member) -> PositionModel:
    return PositionModel(to_load.seed + to_load.fold_id)


def test_each_block_is_a_row_with_features_of_its_tokens(workloads):
    workload, _ = workloads
    frame = workload.compute_features(workload.load_rows())
    examples = workload.examples(frame, RowRange(start=3, stop=9))

    x, y = examples.inputs, examples.targets
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert frame["last_target"].iloc[3:9].tolist() == y[:, -1].tolist()
    assert frame["distinct"].iloc[3:9].tolist() == [len(set(row)) / 8 for row in x.tolist()]
    assert frame["content"].nunique() == len(frame)


def test_constant_distinct_share_is_not_reported_as_constant_feature(tmp_path, monkeypatch):
    """Long blocks of a small vocabulary contain every token, so ``distinct`` is constant."""
    order = np.random.default_rng(0).permuted(np.tile(np.arange(VOCAB), (300, 1)), axis=1)
    write_tokens(tmp_path / "tokens", [order.ravel()], vocab_size=VOCAB)
    monkeypatch.setattr(ChunkedWorkload, "folder", tmp_path / "tokens")
    workload = ChunkedWorkload(LanguageModelSettings(block_len=2 * VOCAB))
    frame = workload.compute_features(workload.load_rows())

    assert frame["distinct"].nunique() == 1
    assert find_constant_features(workload, frame, frame, PocSettings()) is None


def test_scores_computed_in_chunks_equal_those_of_kept_outputs(workloads, monkeypatch):
    """Chunks of three rows are compared with the outputs of all rows at once."""
    chunked, reference = workloads
    frame = chunked.load_rows()
    folds = chunked.plan_folds(frame)
    members = [make_member(seed, fold.fold_id, through="0") for seed in (1, 2) for fold in folds]
    expected = score_candidate(reference, frame, folds, members, load_model, subject="s")
    monkeypatch.setattr(prediction, "_OUTPUT_BYTES", 3 * 8 * VOCAB * 4)
    monkeypatch.setattr(prediction, "_NUM_MEASURED_ROWS", 2)
    PositionModel.max_rows = 0

    scores = score_candidate(chunked, frame, folds, members, load_model, subject="s")

    assert PositionModel.max_rows == 3
    for chunked_scores, kept_scores in (
        (scores.by_seed, expected.by_seed),
        (scores.deployed, expected.deployed),
    ):
        np.testing.assert_allclose(
            chunked_scores.losses.loss_SN, kept_scores.losses.loss_SN, rtol=1e-6
        )
        assert chunked_scores.losses.label_N.tolist() == kept_scores.losses.label_N.tolist()
        assert chunked_scores.metrics == pytest.approx(kept_scores.metrics, rel=1e-6)
        assert {"loss", "perplexity"} == chunked_scores.metrics.keys()
    # The loss of an ensemble is below the mean loss of its members (Jensen's inequality).
    assert scores.deployed.metrics["loss"] < scores.by_seed.metrics["loss"]
    last = max(folds, key=lambda fold: fold.fold_id)
    _, table = _predict_held_out_in_chunks(chunked, frame, folds, members, load_model)
    losses = table["loss"]
    in_last = scores.deployed.losses.fold_N == last.fold_id
    np.testing.assert_allclose(losses, scores.deployed.losses.loss_SN[0, in_last], rtol=1e-6)


def test_drift_reference_contains_the_scores_that_clients_receive(workloads, monkeypatch):
    """The expected scores of the last test window are computed separately for each network."""
    chunked, reference = workloads
    frame = chunked.load_rows()
    folds = chunked.plan_folds(frame)
    members = [make_member(seed, fold.fold_id, through="0") for seed in (1, 2) for fold in folds]
    monkeypatch.setattr(prediction, "_OUTPUT_BYTES", 3 * 8 * VOCAB * 4)

    scores, losses = _predict_held_out_in_chunks(chunked, frame, folds, members, load_model)

    test = chunked.examples(frame, folds[-1].test)
    ids = test.inputs
    expected = torch.zeros(len(ids), dtype=torch.float64)
    for seed in (1, 2):
        shares = PositionModel(seed + folds[-1].fold_id)(ids).detach().double().log_softmax(-1)
        for row, block in enumerate(ids.tolist()):
            log_probs = [shares[row, at, block[at + 1]] for at in range(7)]
            expected[row] -= torch.stack(log_probs).mean() / 2
    assert scores.columns.tolist() == ["prediction"]
    np.testing.assert_allclose(scores["prediction"], expected, rtol=1e-5)
    assert len(losses) == len(scores)

    class NotServedWorkload(type(chunked)):
        is_served = False

    unserved = NotServedWorkload(chunked.settings)
    assert _predict_held_out_in_chunks(unserved, frame, folds, members, load_model)[0] is None
    scored, _ = _predict_held_out_in_chunks(reference, frame, folds, members, load_model)
    np.testing.assert_allclose(scored, scores, rtol=1e-6)


def test_served_losses_are_derived_from_served_outputs(workloads):
    chunked, _ = workloads
    logits = torch.randn(3, 8, VOCAB)
    ids = torch.randint(VOCAB, (3, 9))
    score = chunked.served_output(logits, ids[:, :-1])
    assert torch.equal(chunked.served_losses(score, ids[:, 1:]), score[:, 0])

    sentences = SentencesWorkload()
    next_word = sentences.served_output(logits, ids[:, :-1])
    assert torch.equal(next_word, logits[:, 7])
    shares = logits[:, 7].softmax(-1)[torch.arange(3), ids[:, 8]]
    torch.testing.assert_close(sentences.served_losses(next_word, ids[:, 1:]), -shares.log())
    # One token suffices to predict the next word; the score of a text needs two.
    assert sentences.codec().decode({"sequences": [[3]]}).tolist() == [[3]]
    with pytest.raises(PayloadError, match="must have 2 to 8 tokens, got 1"):
        chunked.codec().decode({"sequences": [[3]]})


def test_losses_and_validation_use_chunks_of_limited_size(workloads, monkeypatch):
    chunked, reference = workloads
    frame = chunked.load_rows()
    test = chunked.examples(frame, RowRange(start=10, stop=60))
    models = [PositionModel(3), PositionModel(4)]
    expected = ensemble_losses(reference, models, test)
    assert rows_per_chunk(test.x, models[0]) == 4096
    monkeypatch.setattr(prediction, "_OUTPUT_BYTES", 5 * 8 * VOCAB * 4)

    torch.testing.assert_close(ensemble_losses(chunked, models, test), expected)
    alone = row_losses(models[0], chunked.losses, test)
    assert rows_per_chunk(test.x, models[0]) == 5
    assert rows_per_chunk(test.x) == rows_per_chunk(torch.zeros(50, 8), models[0]) == 4096
    PositionModel.max_rows = 0
    assert mean_loss(models[0], chunked.losses, test) == pytest.approx(float(alone.mean()))
    assert PositionModel.max_rows == 16  # rows of the size measurement


def test_wrong_output_shape_is_reported_with_seed_and_fold(workloads):
    chunked, _ = workloads
    frame = chunked.load_rows()
    folds = chunked.plan_folds(frame)[:1]
    members = [make_member(1, folds[0].fold_id, through="0")]

    class MissingPosition(PositionModel):
        def forward(self, ids):
            return super().forward(ids)[:, 1:]

    with pytest.raises(
        ValueError, match=r"shape \(\d+, 8, 7\), got \(\d+, 7, 7\) from seed 1, fold 0"
    ):
        score_candidate(chunked, frame, folds, members, lambda _: MissingPosition(0), subject="s")


def test_baseline_is_the_smoothed_bigram_distribution_of_train_tokens(workloads):
    chunked, _ = workloads
    frame = chunked.load_rows()
    fold = chunked.plan_folds(frame)[0]
    train = chunked.examples(frame, fold.train)
    counts = np.zeros((VOCAB, VOCAB))
    for ids, targets in zip(train.inputs.tolist(), train.targets.tolist(), strict=True):
        for pair in zip(ids, targets, strict=True):
            counts[pair] += 1
    unigram_shares = (counts.sum(0) + 1) / (counts.sum() + VOCAB)
    expected = np.log((counts + 5 * unigram_shares) / (counts.sum(1, keepdims=True) + 5))

    rule = chunked.baseline(frame, fold)

    test = chunked.examples(frame, fold.test)
    output = rule[torch.arange(4)]
    np.testing.assert_allclose(output, expected[test.take(torch.arange(4)).inputs], rtol=1e-5)
    baseline = choose_baseline(chunked, frame, [fold], BaselineSettings())
    scores = score_baseline(chunked, frame, [fold], baseline, subject="b")
    assert scores.metrics["perplexity"] == pytest.approx(math.exp(scores.losses.loss_SN.mean()))
    # The perplexity of uniformly random tokens is about the size of the vocabulary.
    assert scores.metrics["perplexity"] == pytest.approx(VOCAB, rel=0.1)


def test_baseline_of_a_large_vocabulary_uses_unigrams():
    ids = torch.tensor([[5000, 1], [1, 1]])
    train = Examples(x=ids, y=ids, rows=np.arange(2))

    shares = bigram_log_probs(train, 5001)

    assert shares.shape == (1, 5001)
    assert shares.exp()[0, [1, 5000, 7]].tolist() == pytest.approx([4 / 5005, 2 / 5005, 1 / 5005])
    assert BigramRows(ids, shares)[torch.tensor([0])].shape == (1, 2, 5001)
