"""Writes the files of a new pipeline for a data file or a folder of images."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from sluice.base.errors import ContractError, SettingsError, SourceError
from sluice.base.pluralize import pluralize
from sluice.data.file_source import suggest_name
from sluice.scaffold.guesses import ImageGuess, TableGuess
from sluice.scaffold.image_inspection import inspect_images
from sluice.scaffold.image_template import image_files
from sluice.scaffold.project import PipelineNames, write_files
from sluice.scaffold.table_inspection import inspect_table
from sluice.scaffold.table_template import table_files

_REASONS_NOTE = "Comments in the files state the reason of each guess."


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPipeline:
    """Files of a new pipeline, and the guesses about its data."""

    files: tuple[Path, ...]
    """The pipeline file, the code and the test."""

    task: str
    """Either "regression" or "classification"."""

    summary: str
    """Sentences about the guesses, for the user."""

    inputs: tuple[str, ...]
    """Names of the columns that are inputs; empty for images."""

    left_out: tuple[tuple[str, str], ...]
    """Name of each column that is not an input, and the reason."""


def create_for_init(folder: Path, data: Path, *, target: str | None, name: str) -> NewPipeline:
    """Write a pipeline for data into a folder, with the file names of ``sluice init``.

    Args:
        folder: Folder of the new files.
        data: File, or folder of images; a relative path starts at the working folder.
        target: Column to predict; None for images.
        name: Name of the pipeline.

    Raises:
        SourceError: The file or folder does not exist, or cannot be read.
        SettingsError: The name is invalid, or the target is missing or not a column.
        ContractError: A file exists, or the data are not sufficient for a model.
    """
    return create_pipeline(folder, data, target=target, names=PipelineNames.for_init(name))


def create_pipeline(
    folder: Path, data: Path, *, target: str | None, names: PipelineNames
) -> NewPipeline:
    """Write a pipeline with the given file names; see ``create_for_init``."""
    guess = _inspect(data, target)
    relative_path = Path(os.path.relpath(data, folder)).as_posix()
    if isinstance(guess, TableGuess):
        guess = replace(guess, data=relative_path)
        return _write_pipeline(folder, table_files(guess, names), _describe_table(guess))
    guess = replace(guess, data=relative_path)
    return _write_pipeline(folder, image_files(guess, names), _describe_images(guess))


def _inspect(data: Path, target: str | None) -> TableGuess | ImageGuess:
    if not data.exists():
        hint = suggest_name(str(data.absolute()))
        raise SourceError(
            f"There is no file or folder {data}.{hint}", fix="Correct the path of the data."
        )
    if data.is_dir():
        if target is not None:
            raise SettingsError(
                f"{data} is a folder of images, so there is no column '{target}'. The names of the "
                "subfolders are the classes.",
                fix="Remove --target, or pass a CSV, Parquet or JSON lines file.",
            )
        return inspect_images(data)
    if target is None:
        raise SettingsError(
            f"The column of {data} to predict is unknown.",
            cause="No column can be recognised as a target from its values.",
            fix=f"Give its name: sluice init {data} --target COLUMN",
        )
    return inspect_table(data, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Description:
    """Guesses about the data; see the fields of ``NewPipeline``."""

    task: str
    summary: str
    inputs: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def _write_pipeline(folder: Path, files: dict[str, str], description: _Description) -> NewPipeline:
    try:
        contents = {name: text.encode() for name, text in files.items()}
    except UnicodeEncodeError as error:
        raise ContractError(
            f"The names and values of the data must be valid text, got {error.object!r}.",
            fix="Write the file again as UTF-8.",
        ) from None
    return NewPipeline(
        files=write_files(folder, contents),
        task=description.task,
        summary=description.summary,
        inputs=description.inputs,
        left_out=description.left_out,
    )


def _describe_table(guess: TableGuess) -> _Description:
    columns = tuple(dict.fromkeys(column.name for column in guess.inputs))
    order_text = "in time order" if guess.order.value == "time" else "without a time order"
    return _Description(
        task=str(guess.task.value),
        summary=f"{str(guess.task.value).capitalize()} of '{guess.target}' "
        f"({guess.task.reason}), {pluralize(guess.num_rows, 'row')} {order_text}, "
        f"{pluralize(len(columns), 'input')}. {_REASONS_NOTE}",
        inputs=columns,
        left_out=tuple((column.name, column.reason) for column in guess.left_out),
    )


def _describe_images(guess: ImageGuess) -> _Description:
    return _Description(
        task="classification",
        summary=f"Classification of {pluralize(guess.num_rows, 'image')} into "
        f"{len(guess.classes)} classes. {_REASONS_NOTE}",
    )
