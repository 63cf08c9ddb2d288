"""Names the files of a new pipeline, and writes them without overwriting any file."""

import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.base.errors import ContractError, SettingsError
from sluice.base.files import write_new

COMPONENT = "sluice.ModelPipeline"
"""Type of the Dagster component in generated pipeline files."""

_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineNames:
    """Names of the files of a new pipeline, and texts that the files contain."""

    name: str
    """Name of the pipeline: prefix of its assets and jobs."""

    module: str
    """Import path of the workload's module, as written in the pipeline file."""

    code_file: str
    pipeline_file: str
    test_file: str
    written_by: str
    """Command that writes the files."""

    run_with: str
    """Command that runs the pipeline."""

    @classmethod
    def for_init(cls, name: str) -> "PipelineNames":
        """Return the names of files that ``sluice init`` writes: NAME.yaml, NAME.py, test_NAME.py.

        Raises:
            SettingsError: The name is not an identifier in lower case. Or it is a keyword of
                Python, 'sluice', or the name of a module of Python's standard library.
        """
        require_name(name)
        if name in sys.stdlib_module_names or name == "sluice":
            raise SettingsError(
                f"A Python module has the name '{name}', and would be imported in place of "
                f"{name}.py.",
                fix=f"Use another name, such as {name}_model.",
            )
        return cls(
            name=name,
            module=name,
            code_file=f"{name}.py",
            pipeline_file=f"{name}.yaml",
            test_file=f"test_{name}.py",
            written_by="sluice init",
            run_with=f"sluice run {name}.yaml",
        )


def require_name(name: str) -> str:
    """Return the name of a pipeline if it is valid.

    Raises:
        SettingsError: The name is not an identifier in lower case, or is a keyword of Python.
    """
    if keyword.iskeyword(name):
        raise SettingsError(
            f"The name of a pipeline must not be a keyword of Python, got '{name}'.",
            fix=f"Use another name, such as {name}_model.",
        )
    if not _NAME_PATTERN.fullmatch(name):
        raise SettingsError(
            f"The name of a pipeline must be letters, digits and underscores in lower case, and "
            f"start with a letter, got '{name}'.",
            fix="Use a name such as my_model.",
        )
    return name


def write_files(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write new files into a folder. If one of the files exists, no file is written.

    Raises:
        ContractError: A file exists.
        StorageError: A file cannot be written.
    """
    existing_names = sorted({name.split("/")[0] for name in files if (folder / name).exists()})
    if existing_names:
        raise ContractError(
            f"{', '.join(existing_names)} exist{'s' if len(existing_names) == 1 else ''} already "
            f"in {folder.resolve()}; nothing was written.",
            fix="Choose another name for the pipeline, or remove these files if you do not need "
            "them.",
        )
    return tuple(_write(folder / name, content) for name, content in files.items())


def _write(path: Path, content: bytes) -> Path:
    if not write_new(path, content):
        raise ContractError(
            f"{path} was created by another program in the meantime; it was not overwritten.",
            fix="Choose another name for the pipeline.",
        )
    return path
