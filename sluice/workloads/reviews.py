"""Workload that classifies generated reviews of products: texts of different lengths."""

from typing import ClassVar

import pandas as pd
from pydantic import Field

from sluice.data.expectations import Between, RowCount
from sluice.data.generated.reviews import generate_reviews
from sluice.workloads.text_classifier import TextClassifierSettings, TextClassifierWorkload
from sluice.workloads.workload import WorkloadSettings


class ReviewsSettings(TextClassifierSettings):
    """Settings of the reviews."""

    num_reviews: int = Field(6_000, ge=200, description="Number of generated reviews [rows].")


class ReviewsWorkload(TextClassifierWorkload):
    """Decides whether a review is positive; 5 % of the labels are wrong.

    The vocabulary was built once, from 4,000 reviews with another seed than the pipeline's::

        texts = generate_reviews(4_000, seed=1)["text"]
        WordTokenizer.build(texts, max_words=200).save(Path("reviews_vocabulary.json"))
    """

    settings_type: ClassVar[type[WorkloadSettings]] = ReviewsSettings
    settings: ReviewsSettings
    classes = ("negative", "positive")
    headline_metric = "accuracy"
    data_files = ("reviews_vocabulary.json",)
    raw_expectations = (RowCount(low=200),)
    feature_expectations = (
        Between(column="words", low=3, high=200),
        Between(column="unknown", low=0, high=0.2),
    )

    def load_texts(self) -> pd.DataFrame:
        """Return the generated reviews, without repeated texts."""
        reviews = generate_reviews(self.settings.num_reviews, seed=0)
        return reviews.drop_duplicates("text")
