"""Small workloads for clients that send texts, tokens, images or raw rows.

The rows, tokens and images are files of one folder.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor, nn

from sluice.data.folds import FoldSettings, RowRange
from sluice.data.rows import ImageFolderRows, SubsetRows, TokenRows, write_tokens
from sluice.data.rows.protocol import DictRows, ModelInput
from sluice.data.schema import Column, Schema
from sluice.workloads.codecs import Codec, ImagesCodec, RawRowsCodec, TextCodec
from sluice.workloads.examples import Examples
from sluice.workloads.language_model import LanguageModelSettings, LanguageModelWorkload
from sluice.workloads.workload import Workload, WorkloadSettings

NUM_ROWS = 240
WORDS = ("good", "fine", "great", "bad", "poor", "awful", "plot", "actor", "film", "scene")
MAX_LEN = 12
VOCABULARY_SIZE = 11
"""Number of token ids of ``BlockWorkload``."""


class FolderSettings(WorkloadSettings):
    folds: FoldSettings = FoldSettings(num_folds=1, embargo_rows=2)
    folder: str = ""


class _FolderWorkload(Workload):
    """A workload whose rows are in ``rows.json`` of a folder."""

    settings_type = FolderSettings
    settings: FolderSettings
    feature_columns: tuple[str, ...] = ()
    target_column = "target"
    scale_inputs = False

    @property
    def folder(self) -> Path:
        return Path(self.settings.folder)

    def load_rows(self) -> pd.DataFrame:
        return pd.read_json(self.folder / "rows.json", orient="records", dtype=False)

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        return raw

    def targets(self, frame: pd.DataFrame, rows: RowRange) -> Tensor:
        targets = frame["target"].to_numpy(np.float32)[rows.start : rows.stop, None]
        return torch.from_numpy(targets.copy())


class Vocabulary:
    """Tokenizer that splits at whitespace. Unknown words have the id 1."""

    def __init__(self, file: Path) -> None:
        self.ids: dict[str, int] = json.loads(file.read_text())

    def __call__(self, text: str) -> list[int]:
        return [self.ids.get(word, 1) for word in text.lower().split()]


class TextNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(50, 6), nn.Linear(6, 1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weight = mask[:, :, None].float()
        return self.out((self.embedding(ids) * weight).sum(1) / weight.sum(1))


class TextWorkload(_FolderWorkload):
    raw_schema = Schema(columns=(Column(name="text", kind="string"), Column(name="target")))
    feature_schema = raw_schema

    def build_model(self, num_features: int, num_outputs: int, settings: Any) -> nn.Module:
        return TextNetwork()

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        tokens = TokenRows(self.folder / "tokens", vocab_size=50, max_len=MAX_LEN)
        positions = np.arange(rows.start, rows.stop)
        return Examples(
            x=SubsetRows(tokens, positions), y=self.targets(frame, rows), rows=positions
        )

    def codec(self) -> Codec:
        file = self.folder / "vocabulary.json"
        return TextCodec(Vocabulary(file), vocab_size=50, files={file.name: file}, max_len=MAX_LEN)


class ImageNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.float() / 255)


class ImageWorkload(_FolderWorkload):
    raw_schema = Schema(columns=(Column(name="path", kind="string"), Column(name="target")))
    feature_schema = raw_schema

    def build_model(self, num_features: int, num_outputs: int, settings: Any) -> nn.Module:
        return ImageNetwork()

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        paths = frame["path"].iloc[rows.start : rows.stop]
        return Examples(
            x=ImageFolderRows(self.folder, paths.tolist(), size=8),
            y=self.targets(frame, rows),
            rows=np.arange(rows.start, rows.stop),
        )

    def codec(self) -> Codec:
        return ImagesCodec(8, folder=self.folder)


class BlockSettings(LanguageModelSettings):
    folds: FoldSettings = FoldSettings(num_folds=1, embargo_rows=2)
    block_len: int = Field(6, ge=2)
    folder: str = ""


class BlockNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(VOCABULARY_SIZE, 6), nn.Linear(6, VOCABULARY_SIZE)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embedding(ids).cumsum(1))


class BlockWorkload(LanguageModelWorkload):
    """A small language model of token ids."""

    settings_type = BlockSettings
    settings: BlockSettings
    vocab_size = VOCABULARY_SIZE

    @property
    def tokens_path(self) -> Path:
        return Path(self.settings.folder) / "tokens"

    def build_model(self, num_features: int, num_outputs: int, settings: Any) -> nn.Module:
        return BlockNetwork()


class BarSettings(FolderSettings):
    seq_len: int = Field(4, ge=1)
    context_rows: int = Field(8, ge=1)


class RawBars(_FolderWorkload):
    """Windows of two features of bars: value change times volume, and mean of four values."""

    settings_type = BarSettings
    settings: BarSettings
    raw_schema = Schema(
        columns=(Column(name="value"), Column(name="volume", kind="int")),
        index_name="time",
        index_kind="datetime",
    )
    feature_schema = Schema(
        columns=(Column(name="change"), Column(name="mean"), Column(name="target")),
        index_name="time",
        index_kind="datetime",
    )
    feature_columns = ("change", "mean")
    horizon_rows = 2

    def load_rows(self) -> pd.DataFrame:
        row = np.arange(NUM_ROWS)
        value = 10 + np.sin(row / 5) + 0.01 * (row * 7 % 13)
        times = pd.date_range("2024-01-01", periods=NUM_ROWS, freq="h", name="time", tz="UTC")
        return pd.DataFrame({"value": value, "volume": row % 9 + 1}, index=times)

    def compute_features(self, raw: pd.DataFrame) -> pd.DataFrame:
        value = raw["value"]
        frame = pd.DataFrame(
            {
                "change": value.diff() * raw["volume"],
                "mean": value.rolling(4).mean(),
                "target": value.shift(-self.horizon_rows),
            }
        )
        return frame.dropna()

    def codec(self) -> Codec:
        return RawRowsCodec(self, context_rows=self.settings.context_rows)


class NamedNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.window, self.last = nn.Linear(8, 1), nn.Linear(2, 1)

    def forward(self, window: Tensor, last: Tensor) -> Tensor:
        return self.window(window.flatten(1)) + self.last(last)


class NamedBars(RawBars):
    """The bars of ``RawBars`` with two named inputs: the window, and the last row of the window."""

    def build_model(self, num_features: int, num_outputs: int, settings: Any) -> nn.Module:
        return NamedNetwork()

    def examples(self, frame: pd.DataFrame, rows: RowRange) -> Examples:
        examples = super().examples(frame, rows)
        x = examples.tensor
        return Examples(
            x=DictRows({"window": x, "last": x[:, -1]}), y=examples.targets, rows=examples.rows
        )


def write_texts(folder: Path) -> dict[str, str]:
    """Write texts, their token ids and the vocabulary; return the settings of the workload."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = {word: number for number, word in enumerate(WORDS, start=2)}
    (folder / "vocabulary.json").write_text(json.dumps(ids))
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 16))) for _ in range(NUM_ROWS)]
    _write_rows(folder, [{"text": text, "target": _sentiment(text)} for text in texts])
    tokenize = Vocabulary(folder / "vocabulary.json")
    write_tokens(folder / "tokens", map(tokenize, texts), vocab_size=50)
    return {"folder": str(folder)}


def write_blocks(folder: Path) -> dict[str, str]:
    """Write the token ids of a corpus; return the settings of the workload."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.random.default_rng(0).integers(0, VOCABULARY_SIZE, 6 * NUM_ROWS + 1)
    write_tokens(folder / "tokens", [ids], vocab_size=VOCABULARY_SIZE)
    return {"folder": str(folder)}


def write_images(folder: Path) -> dict[str, str]:
    """Write PNG files of two sizes; return the settings of the workload."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows = []
    for number in range(NUM_ROWS):
        shape = (8, 8, 3) if number % 2 else (11, 9, 3)
        brightness = int(rng.integers(40, 200))
        pixels = rng.integers(brightness - 40, brightness + 40, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
        rows.append({"path": f"{number:03}.png", "target": brightness / 100})
    _write_rows(folder, rows)
    return {"folder": str(folder)}


def network_input(workload: Workload, row: int) -> ModelInput:
    """Return the network input of one row of the workload's frame."""
    frame = workload.compute_features(workload.load_rows())
    return workload.examples(frame, RowRange(start=row, stop=row + 1)).inputs


def _write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "rows.json").write_text(json.dumps(rows))


def _sentiment(text: str) -> float:
    """Return the mean over the words: 1 for a positive word, -1 for a negative word, else 0."""
    words = text.split()
    return sum((WORDS.index(word) < 3) - (3 <= WORDS.index(word) < 6) for word in words) / len(
        words
    )
