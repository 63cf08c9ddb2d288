"""Workload that trains a language model on generated sentences, packed into blocks."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from sluice.data.expectations import RowCount
from sluice.data.generated.folder import generate_once
from sluice.data.generated.sentences import VOCABULARY, generate_sentences
from sluice.data.rows import write_tokens
from sluice.data.rows.protocol import ModelInput
from sluice.workloads.language_model import LanguageModelSettings, LanguageModelWorkload
from sluice.workloads.workload import WorkloadSettings


class SentencesSettings(LanguageModelSettings):
    """Settings of the sentences."""

    num_sentences: int = Field(20_000, ge=1_000, description="Number of generated sentences.")


class SentencesWorkload(LanguageModelWorkload):
    """Predicts the next word of generated English sentences."""

    settings_type: ClassVar[type[WorkloadSettings]] = SentencesSettings
    settings: SentencesSettings
    raw_expectations = (RowCount(low=100),)

    @property
    def vocab_size(self) -> int:
        """Number of words of the grammar; the id of a word is its position in the list."""
        return len(VOCABULARY)

    def served_output(
        self,
        output: Tensor,
        x: ModelInput,  # noqa: ARG002 - the output is sufficient
    ) -> Tensor:
        """Return the logits of the next word (B, V), from which a client can sample it."""
        return output[:, -1]

    def served_losses(self, served: Tensor, y: Tensor) -> Tensor:
        """Return the log loss of the next word (B,) [nats]."""
        return nn.functional.cross_entropy(served, y[:, -1], reduction="none")

    @property
    def tokens_path(self) -> Path:
        """Folder of the tokens. If the folder does not exist, the tokens are generated first."""
        count = self.settings.num_sentences

        def write(folder: Path) -> None:
            ids = {word: number for number, word in enumerate(VOCABULARY)}
            sentences = generate_sentences(count, seed=0)
            documents = ([ids[word] for word in words] for words in sentences)
            write_tokens(folder, documents, vocab_size=self.vocab_size)

        return generate_once(f"sentences_{count}", write)
