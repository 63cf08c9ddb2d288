"""Templates of a pipeline on a folder of images: its class, its pipeline file and its test."""

import json

from sluice.base.pluralize import pluralize
from sluice.scaffold.code import class_name, comment, flow_mapping, join_lines, with_comment
from sluice.scaffold.guesses import FIRST_FOLDS, ImageGuess
from sluice.scaffold.project import COMPONENT, PipelineNames
from sluice.scaffold.table_columns import quote

_NETWORK = '''class Network(nn.Module):
    """Small convolutional network: images with values 0 to 255 become one logit per class.

    Images have shape (B, C, H, W). ``num_features`` is C, the number of channels. ``num_outputs``
    is the number of classes.
    """

    def __init__(self, num_features, num_outputs, settings):
        super().__init__()
        width = settings.hidden
        self.layers = nn.Sequential(
            nn.Conv2d(num_features, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Dropout(settings.dropout),
            nn.Linear(32 * width, num_outputs),
        )

    def forward(self, x):
        return self.layers(x.float() / 255 - 0.5)
'''


def image_files(guess: ImageGuess, names: PipelineNames) -> dict[str, str]:
    """Return the contents of the pipeline file, the code and the test, by file name."""
    return {
        names.pipeline_file: _format_pipeline(guess, names),
        names.code_file: _format_code(guess, names),
        names.test_file: _format_test(guess, names),
    }


def _format_code(guess: ImageGuess, names: PipelineNames) -> str:
    quoted_classes = ", ".join(map(quote, guess.classes))
    return join_lines(
        [
            f'"""Classifies the images in {json.dumps(guess.data)[1:-1]}."""',
            "",
            "from torch import nn",
            "",
            "from sluice.workloads.image_folder import ImageFolderWorkload",
            "",
            "",
            f"class {class_name(names.name)}(ImageFolderWorkload):",
            '    """Images with the names of their subfolders as classes."""',
            "",
            *(comment(note, indent=4) for note in guess.class_notes),
            with_comment(
                f"classes = ({quoted_classes})",
                "Names of the subfolders. The index of a name in this tuple is its class number.",
                indent=4,
            ).rstrip(","),
            "",
            "",
            _NETWORK.rstrip("\n"),
        ]
    )


def _format_pipeline(guess: ImageGuess, names: PipelineNames) -> str:
    purpose = f"Classifies the images in {guess.data}."
    return join_lines(
        [
            f"# Written by '{names.written_by}' from {pluralize(guess.num_rows, 'image')}. "
            f"Run it with: {names.run_with}",
            f"type: {COMPONENT}",
            "",
            "attributes:",
            f"  name: {names.name}",
            f"  description: {json.dumps(purpose, ensure_ascii=False)}",
            "",
            f"  workload: {names.module}:{class_name(names.name)}",
            "  workload_settings:",
            f"    folder: {json.dumps(guess.data, ensure_ascii=False)}",
            comment(guess.size.reason, indent=4),
            f"    size: {guess.size.value}",
            comment(
                "Images count as independent. If several images show the same object or person, "
                "keep them in one split: override plan_folds in your class.",
                indent=4,
            ),
            f"    folds: {flow_mapping({**FIRST_FOLDS, 'embargo_rows': 0})}",
            "",
            comment("The network is in your module, where you can replace it.", indent=2),
            f"  model: {{architecture: '{names.module}:Network', hidden: 16, dropout: 0.1}}",
            "  training: "
            "{max_epochs: 15, patience_epochs: 5, learning_rate: 0.003, batch_rows: 64}",
            comment(
                "Five networks per fold, the minimum of the promotion gate. More seeds detect "
                "smaller gains.",
                indent=2,
            ),
            "  seeds: [0, 1, 2, 3, 4]",
        ]
    )


def _format_test(guess: ImageGuess, names: PipelineNames) -> str:
    height, width = guess.size.value
    return f'''"""Tests of {names.code_file}: run them with 'pytest {names.test_file}'."""

from pathlib import Path

import pytest
import torch

from sluice.config.pipeline import read_pipeline
from sluice.config.resolved import resolve

WORKLOAD = resolve(read_pipeline(Path(__file__).with_name("{names.pipeline_file}"))).workload


@pytest.fixture(scope="module")
def frame():
    return WORKLOAD.compute_features(WORKLOAD.load_rows())


def test_every_class_has_images(frame):
    assert set(frame["label"]) == set(WORKLOAD.classes)


def test_images_have_one_size(frame):
    train = WORKLOAD.plan_folds(frame)[0].train

    batch = WORKLOAD.examples(frame, train).take(range(4)).tensor

    assert batch.shape == (4, 3, {height}, {width})
    assert batch.dtype == torch.uint8
    assert batch.min() < batch.max()
'''
