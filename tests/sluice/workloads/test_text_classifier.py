"""Text classification workload: tokens, errors, baseline and requests."""

from pathlib import Path

import pandas as pd
import pytest
import torch

import sluice.workloads.reviews
from sluice.base.errors import ContractError
from sluice.data.folds import RowRange
from sluice.data.generated.reviews import generate_reviews
from sluice.data.tokenizer import WordTokenizer
from sluice.failfast.data.served_inputs import check_served_inputs
from sluice.models.settings import ModelSettings
from sluice.workloads.reviews import ReviewsSettings, ReviewsWorkload

VOCABULARY = Path(sluice.workloads.reviews.__file__).with_name("reviews_vocabulary.json")


def test_packaged_vocabulary_is_built_from_reviews_of_another_seed():
    expected = WordTokenizer.build(generate_reviews(4_000, seed=1)["text"], max_words=200)

    assert WordTokenizer.load(VOCABULARY).digest == expected.digest


def test_texts_become_token_ids_with_mask_and_class():
    workload = ReviewsWorkload(ReviewsSettings(num_reviews=300, max_tokens=20))
    frame = workload.compute_features(workload.load_rows())
    examples = workload.examples(frame, RowRange(start=10, stop=20))

    x = examples.inputs
    assert x["ids"].shape == x["mask"].shape == (10, 20)
    lengths = frame["words"].iloc[10:20].clip(upper=20)
    assert x["mask"].sum(dim=1).tolist() == lengths.tolist()
    for ids, count, text in zip(x["ids"], lengths, frame["text"].iloc[10:20], strict=True):
        assert ids[:count].tolist() == workload.tokenizer.encode(text)[:20]
    assert [workload.classes[y] for y in examples.targets] == frame["label"].iloc[10:20].tolist()
    settings = ModelSettings(architecture="sluice.models.text_cnn:TextCnn", hidden=4)
    assert workload.build_model(0, 2, settings)(**x).shape == (10, 2)
    # A selection of examples keeps the lengths that bucketing uses.
    assert examples.take(torch.tensor([3, 1])).x.lengths.tolist() == lengths.iloc[[3, 1]].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": " "}, r"row 1 \(index label .*\) has ' '"),
        ({"label": "mixed"}, "must be negative, positive; unknown: mixed; missing: negative"),
    ],
)
def test_empty_text_and_unknown_label_are_reported(change, message):
    rows = pd.DataFrame({"text": ["good", "bad"], "label": ["positive", "negative"]})
    for column, value in change.items():
        rows.loc[1, column] = value

    with pytest.raises(ContractError, match=message):
        ReviewsWorkload().compute_features(rows)


def test_share_of_unknown_words_is_a_feature():
    rows = pd.DataFrame({"text": ["the lamp is zzz"], "label": ["positive"]})

    assert ReviewsWorkload().compute_features(rows)["unknown"].tolist() == [0.25]


def test_baseline_is_a_bag_of_words_model():
    """Half of the opinions are negated, so single words are weak features."""
    workload = ReviewsWorkload(ReviewsSettings(num_reviews=1_500))
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]

    output = workload.baseline(frame, fold)

    y = workload.examples(frame, fold.test).targets
    assert output.shape == (len(y), 2)
    torch.testing.assert_close(output.exp().sum(dim=1), torch.ones(len(y)))
    assert 0.5 < float(workload.losses(output, y).mean()) < 0.9
    shuffled = frame.assign(text=[" ".join(reversed(text.split())) for text in frame["text"]])
    torch.testing.assert_close(workload.baseline(shuffled, fold), output, atol=1e-4, rtol=1e-4)
    with pytest.raises(ContractError, match="got none of negative"):
        workload.baseline(frame.assign(**{"class": 1}), fold)


def test_missing_text_is_reported(monkeypatch):
    texts = pd.DataFrame({"text": ["good", None], "label": ["positive", "negative"]})
    monkeypatch.setattr(ReviewsWorkload, "load_texts", lambda _: texts)

    with pytest.raises(ContractError, match=r"row 1 has (None|nan) \(1 in total\)"):
        ReviewsWorkload().load_rows()


def test_codec_tokenizes_request_texts_as_in_training():
    workload = ReviewsWorkload(ReviewsSettings(num_reviews=300))
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    folds = workload.plan_folds(frame)

    result = check_served_inputs(workload, required=True, raw=raw, frame=frame, folds=folds)

    assert (result.outcome, workload.codec().kind) == ("pass", "text")
