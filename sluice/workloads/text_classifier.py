"""Base class of workloads that classify texts with a tokenizer of words."""

from abc import abstractmethod
from functools import cached_property
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.data.expectations import Expectation
from sluice.data.folds import Fold, FoldSettings, RowRange
from sluice.data.hash_order import in_hash_order
from sluice.data.rows import TextRows
from sluice.data.schema import Column, Schema
from sluice.data.tokenizer import WordTokenizer, split_words
from sluice.models.settings import ModelSettings
from sluice.workloads.classification import describe_label_mismatch
from sluice.workloads.codecs import Codec, TextCodec
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload, WorkloadSettings

_RAW_COLUMNS = (
    Column(name="text", kind="string"),
    Column(name="label", kind="string", description="Name of the class."),
)
_FEATURE_COLUMNS = (
    Column(name="words", kind="int", description="Number of words and punctuation marks."),
    Column(
        name="unknown",
        unit="share",
        constant=True,
        description="Words outside of the vocabulary, as a share of the text.",
    ),
    Column(name="class", kind="int", description="Number of the class."),
)


class TextClassifierSettings(WorkloadSettings):
    """Settings of the texts."""

    folds: FoldSettings = FoldSettings(num_folds=1, first_test_share=0.75, embargo_rows=0)
    max_tokens: int = Field(
        64, ge=1, description="Maximum length of a text; longer texts are cut [tokens]."
    )


class TextClassifierWorkload(Workload):
    """Classifies texts; a batch is padded to its longest text, and the network gets the mask.

    A subclass declares ``classes`` and, as ``data_files``, the vocabulary file of
    ``WordTokenizer``; and implements ``load_texts``.
    """

    settings_type: ClassVar[type[WorkloadSettings]] = TextClassifierSettings
    settings: TextClassifierSettings
    task = "classification"
    scale_inputs = False
    raw_schema = Schema(columns=_RAW_COLUMNS, index_name="text_key", index_kind="int")
    feature_schema = Schema(
        columns=(*_RAW_COLUMNS, *_FEATURE_COLUMNS), index_name="text_key", index_kind="int"
    )
    feature_columns = ("words", "unknown")
    display_column = "text"
    target_column = "class"
    horizon_rows = 0
    feature_expectations: tuple[Expectation, ...] = ()

    @cached_property
    def tokenizer(self) -> WordTokenizer:
        """Tokenizer with the vocabulary of the first file of ``data_files``."""
        return WordTokenizer.load(self.data_path(self.data_files[0]))

    @abstractmethod
    def load_texts(self) -> pd.DataFrame:
        """Return the columns text and label, in any order; the texts must be distinct."""

    def load_rows(self) -> pd.DataFrame:
        """Return the texts in the order of a hash of their content.

        Raises:
            ContractError: A row has no text.
        """
        texts = self.load_texts()
        rows_without_text = [
            row for row, text in enumerate(texts["text"].tolist()) if not isinstance(text, str)
        ]
        if rows_without_text:
            raise ContractError(
                f"Every row must have a text, but row {rows_without_text[0]} has "
                f"{texts['text'].iloc[rows_without_text[0]]!r} ({len(rows_without_text)} in "
                "total).",
                fix="Drop rows without a text in load_texts().",
            )
        return in_hash_order(texts, ["text"], name="text_key")

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        """Return the texts with the number of words, the share of unknown words, and the class.

        Raises:
            ContractError: A text has no word, or a label is not one of ``classes``.
        """
        words_by_text = [split_words(text) for text in raw["text"]]
        empty_row = next((row for row, words in enumerate(words_by_text) if not words), None)
        class_numbers = {str(name): class_number for class_number, name in enumerate(self.classes)}
        labels = set(raw["label"])
        if empty_row is not None:
            raise ContractError(
                f"Every text must have a word, but row {empty_row} (index label "
                f"{raw.index[empty_row]}) has {raw['text'].iloc[empty_row]!r}.",
                fix="Drop texts without words in load_texts().",
            )
        if labels - class_numbers.keys():
            raise ContractError(
                f"The labels must be {', '.join(class_numbers)}; "
                f"{describe_label_mismatch(labels, self.classes)}.",
                fix="Correct the labels, add the class to 'classes' of the workload, or drop its "
                "texts.",
            )
        known_words = set(self.tokenizer.words)
        return raw.assign(
            words=[len(words) for words in words_by_text],
            unknown=[
                sum(word not in known_words for word in words) / len(words)
                for words in words_by_text
            ],
            **{"class": raw["label"].map(class_numbers).astype("int64")},
        )

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        """Return token ids with their mask, and the numbers of the classes (N,)."""
        split_frame = frame.iloc[rows.start : rows.stop]
        return Examples(
            x=TextRows(
                split_frame["text"].tolist(),
                self.tokenizer.encode,
                vocab_size=self.tokenizer.vocab_size,
                max_len=self.settings.max_tokens,
                pad_id=self.tokenizer.pad_id,
            ),
            y=torch.tensor(split_frame["class"].to_numpy(np.int64)),
            rows=np.arange(rows.start, rows.stop),
        )

    def codec(self) -> Codec:
        """Return the codec, which tokenizes texts of clients like the texts of the training."""
        path = self.data_path(self.data_files[0])
        return TextCodec(
            self.tokenizer.encode,
            vocab_size=self.tokenizer.vocab_size,
            files={path.name: path},
            max_len=self.settings.max_tokens,
            pad_id=self.tokenizer.pad_id,
        )

    def baseline(self, frame: pd.DataFrame, fold: Fold) -> Tensor:
        """Return the log probabilities of a logistic regression on the counts of words.

        The regression is fitted on train and validation rows, and ignores the order of the words.

        Raises:
            ContractError: The train and validation rows lack a class.
        """
        from scipy.sparse import csr_array
        from sklearn.linear_model import LogisticRegression

        def count_words(rows: pd.DataFrame) -> csr_array:
            documents = [self.tokenizer.encode(text) for text in rows["text"]]
            row = np.repeat(np.arange(len(documents)), [len(ids) for ids in documents])
            column = np.concatenate([np.array(ids, np.int64) for ids in documents])
            shape = (len(documents), self.tokenizer.vocab_size)
            return csr_array((np.ones(len(row)), (row, column)), shape=shape)

        fit_rows = pd.concat(
            [frame.iloc[part.start : part.stop] for part in (fold.train, fold.val)]
        )
        present_classes = set(fit_rows["class"])
        if len(present_classes) < len(self.classes):
            missing_names = [
                str(name) for n, name in enumerate(self.classes) if n not in present_classes
            ]
            raise ContractError(
                f"The train and validation rows must have every class, got none of "
                f"{', '.join(missing_names)}.",
                fix="Provide more texts, or start the first test window later.",
            )
        model = LogisticRegression(max_iter=2_000).fit(count_words(fit_rows), fit_rows["class"])
        test = count_words(frame.iloc[fold.test.start : fold.test.stop])
        return torch.from_numpy(model.predict_log_proba(test).astype(np.float32))

    def build_model(
        self,
        num_features: int,  # noqa: ARG002 - a dict of inputs has none
        num_outputs: int,
        settings: ModelSettings,
    ) -> nn.Module:
        """Return a network for the size of the vocabulary."""
        return super().build_model(self.tokenizer.vocab_size, num_outputs, settings)
