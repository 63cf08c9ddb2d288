"""Language models: their logits are never in memory for a whole split."""

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
from sluice.training.prediction import chunk_rows, mean_loss, row_losses
from sluice.workloads.examples import Examples
from sluice.workloads.language_model import (
    BigramRows,
    LanguageModelSettings,
    LanguageModelWorkload,
    bigram_log_shares,
)
from sluice.workloads.sentences import SentencesWorkload
from tests.sluice.evaluation.scored_workload import member

VOCAB = 7


class Small(LanguageModelWorkload):
    folder = None
    vocab_size = VOCAB

    @property
    def tokens(self):
        return self.folder


class Whole(Small):
    """The same workload, whose outputs are kept."""

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
    monkeypatch.setattr(Small, "folder", folder)
    settings = LanguageModelSettings(block_len=8, folds=FoldSettings(num_folds=2, embargo_rows=1))
    return Small(settings), Whole(settings)


class Model(nn.Module):
    """Outputs that depend on the seed, the token and its position."""

    largest = 0

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(VOCAB, VOCAB)

    def forward(self, ids):
        Model.largest = max(Model.largest, len(ids))
        return self.table(ids) * (1 + torch.arange(ids.shape[1])[:, None] / 10)


def load(one: Member) -> Model:
    return Model(one.seed + one.fold_id)


def test_one_row_per_block_with_the_content_of_its_tokens(workloads):
    workload, _ = workloads
    frame = workload.compute_features(workload.load_rows())
    examples = workload.examples(frame, RowRange(start=3, stop=9))

    x, y = examples.inputs, examples.targets
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert frame["last_target"].iloc[3:9].tolist() == y[:, -1].tolist()
    assert frame["distinct"].iloc[3:9].tolist() == [len(set(row)) / 8 for row in x.tolist()]
    assert frame["content"].nunique() == len(frame)


def test_blocks_that_contain_every_token_pass_the_gate(tmp_path, monkeypatch):
    """As the long blocks of a small vocabulary do: their share of tokens is one number."""
    order = np.random.default_rng(0).permuted(np.tile(np.arange(VOCAB), (300, 1)), axis=1)
    write_tokens(tmp_path / "tokens", [order.ravel()], vocab_size=VOCAB)
    monkeypatch.setattr(Small, "folder", tmp_path / "tokens")
    workload = Small(LanguageModelSettings(block_len=2 * VOCAB))
    frame = workload.compute_features(workload.load_rows())

    assert frame["distinct"].nunique() == 1
    assert find_constant_features(workload, frame, frame, PocSettings()) is None


def test_scores_in_chunks_are_those_of_whole_outputs(workloads, monkeypatch):
    """Chunks of three rows, against the outputs of all rows at once."""
    chunked, whole = workloads
    frame = chunked.load_rows()
    folds = chunked.plan_folds(frame)
    members = [member(seed, fold.fold_id, through="0") for seed in (1, 2) for fold in folds]
    expected = score_candidate(whole, frame, folds, members, load, subject="s")
    monkeypatch.setattr(prediction, "_OUTPUT_BYTES", 3 * 8 * VOCAB * 4)
    monkeypatch.setattr(prediction, "_SIZED_ROWS", 2)
    Model.largest = 0

    found = score_candidate(chunked, frame, folds, members, load, subject="s")

    assert Model.largest == 3
    for ours, theirs in ((found.by_seed, expected.by_seed), (found.deployed, expected.deployed)):
        np.testing.assert_allclose(ours.losses.loss_SN, theirs.losses.loss_SN, rtol=1e-6)
        assert ours.losses.label_N.tolist() == theirs.losses.label_N.tolist()
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-6)
        assert {"loss", "perplexity"} == ours.metrics.keys()
    # An ensemble of different models is better than their mean loss (Jensen's inequality).
    assert found.deployed.metrics["loss"] < found.by_seed.metrics["loss"]
    last = max(folds, key=lambda fold: fold.fold_id)
    _, table = _predict_held_out_in_chunks(chunked, frame, folds, members, load)
    losses = table["loss"]
    in_last = found.deployed.losses.fold_N == last.fold_id
    np.testing.assert_allclose(losses, found.deployed.losses.loss_SN[0, in_last], rtol=1e-6)


def test_the_reference_of_predictions_has_what_clients_receive(workloads, monkeypatch):
    """Scores of the last test window, from a calculation written out for each network."""
    chunked, whole = workloads
    frame = chunked.load_rows()
    folds = chunked.plan_folds(frame)
    members = [member(seed, fold.fold_id, through="0") for seed in (1, 2) for fold in folds]
    monkeypatch.setattr(prediction, "_OUTPUT_BYTES", 3 * 8 * VOCAB * 4)

    scores, losses = _predict_held_out_in_chunks(chunked, frame, folds, members, load)

    test = chunked.examples(frame, folds[-1].test)
    ids = test.inputs
    expected = torch.zeros(len(ids), dtype=torch.float64)
    for seed in (1, 2):
        shares = Model(seed + folds[-1].fold_id)(ids).detach().double().log_softmax(-1)
        for row, block in enumerate(ids.tolist()):
            found = [shares[row, at, block[at + 1]] for at in range(7)]
            expected[row] -= torch.stack(found).mean() / 2
    assert scores.columns.tolist() == ["prediction"]
    np.testing.assert_allclose(scores["prediction"], expected, rtol=1e-5)
    assert len(losses) == len(scores)

    class Unserved(type(chunked)):
        is_served = False

    unserved = Unserved(chunked.settings)
    assert _predict_held_out_in_chunks(unserved, frame, folds, members, load)[0] is None
    scored, _ = _predict_held_out_in_chunks(whole, frame, folds, members, load)
    np.testing.assert_allclose(scored, scores, rtol=1e-6)


def test_scores_are_the_losses_of_a_rollout_and_logits_those_of_the_next_word(workloads):
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
    # A next word has a distribution after one word; a score needs a second one.
    assert sentences.codec().decode({"sequences": [[3]]}).tolist() == [[3]]
    with pytest.raises(PayloadError, match="must have 2 to 8 tokens, got 1"):
        chunked.codec().decode({"sequences": [[3]]})


def test_losses_and_validation_read_small_chunks(workloads, monkeypatch):
    chunked, whole = workloads
    frame = chunked.load_rows()
    test = chunked.examples(frame, RowRange(start=10, stop=60))
    models = [Model(3), Model(4)]
    expected = ensemble_losses(whole, models, test)
    assert chunk_rows(test.x, models[0]) == 4096
    monkeypatch.setattr(prediction, "_OUTPUT_BYTES", 5 * 8 * VOCAB * 4)

    torch.testing.assert_close(ensemble_losses(chunked, models, test), expected)
    alone = row_losses(models[0], chunked.losses, test)
    assert chunk_rows(test.x, models[0]) == 5
    assert chunk_rows(test.x) == chunk_rows(torch.zeros(50, 8), models[0]) == 4096
    Model.largest = 0
    assert mean_loss(models[0], chunked.losses, test) == pytest.approx(float(alone.mean()))
    assert Model.largest == 16  # the rows whose size is measured


def test_a_wrong_shape_and_wrong_losses_are_named(workloads):
    chunked, _ = workloads
    frame = chunked.load_rows()
    folds = chunked.plan_folds(frame)[:1]
    members = [member(1, folds[0].fold_id, through="0")]

    class OneTooFew(Model):
        def forward(self, ids):
            return super().forward(ids)[:, 1:]

    with pytest.raises(
        ValueError, match=r"shape \(\d+, 8, 7\), got \(\d+, 7, 7\) from seed 1, fold 0"
    ):
        score_candidate(chunked, frame, folds, members, lambda _: OneTooFew(0), subject="s")


def test_the_baseline_counts_pairs_of_train_tokens(workloads):
    chunked, _ = workloads
    frame = chunked.load_rows()
    fold = chunked.plan_folds(frame)[0]
    train = chunked.examples(frame, fold.train)
    counts = np.zeros((VOCAB, VOCAB))
    for ids, targets in zip(train.inputs.tolist(), train.targets.tolist(), strict=True):
        for pair in zip(ids, targets, strict=True):
            counts[pair] += 1
    single = (counts.sum(0) + 1) / (counts.sum() + VOCAB)
    expected = np.log((counts + 5 * single) / (counts.sum(1, keepdims=True) + 5))

    rule = chunked.baseline(frame, fold)

    test = chunked.examples(frame, fold.test)
    output = rule[torch.arange(4)]
    np.testing.assert_allclose(output, expected[test.take(torch.arange(4)).inputs], rtol=1e-5)
    baseline = choose_baseline(chunked, frame, [fold], BaselineSettings())
    scores = score_baseline(chunked, frame, [fold], baseline, subject="b")
    assert scores.metrics["perplexity"] == pytest.approx(math.exp(scores.losses.loss_SN.mean()))
    # Random tokens: about as many choices as there are tokens.
    assert scores.metrics["perplexity"] == pytest.approx(VOCAB, rel=0.1)


def test_a_large_vocabulary_is_counted_without_pairs():
    ids = torch.tensor([[5000, 1], [1, 1]])
    train = Examples(x=ids, y=ids, rows=np.arange(2))

    shares = bigram_log_shares(train, 5001)

    assert shares.shape == (1, 5001)
    assert shares.exp()[0, [1, 5000, 7]].tolist() == pytest.approx([4 / 5005, 2 / 5005, 1 / 5005])
    assert BigramRows(ids, shares)[torch.tensor([0])].shape == (1, 2, 5001)
