"""Scaffolder of the component: what ``dg scaffold defs sluice.ModelPipeline NAME`` writes."""

import contextlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import dagster as dg
from pydantic import BaseModel, Field

from sluice.base.errors import SettingsError, SluiceError
from sluice.scaffold.create import create_pipeline
from sluice.scaffold.project import PipelineNames, require_name, write_files
from sluice.scaffold.samples import Template, make_sample


class PipelineTemplate(BaseModel):
    """Parameters of ``dg scaffold defs sluice.ModelPipeline``."""

    template: Template = Field(
        "tabular",
        description="Kind of the sample data: regression, classification, images, text or tabular.",
    )
    data: str = Field(
        "",
        description="Your own CSV, Parquet or JSON lines file, or folder of images, in place of "
        "sample data.",
    )
    target: str = Field("", description="Column of your data to predict; not for images.")


class PipelineScaffolder(dg.Scaffolder[PipelineTemplate]):
    """Writes ``defs.yaml``, ``workload.py`` and a test, with sample data if the user gives none."""

    @classmethod
    def get_scaffold_params(cls) -> type[PipelineTemplate]:
        """Return the parameters, which dg offers as options."""
        return PipelineTemplate

    def scaffold(self, request: dg.ScaffoldRequest[PipelineTemplate]) -> None:
        """Write the files of a pipeline into the folder of the request.

        Raises:
            click.ClickException: The format is not YAML, the name is invalid, a file exists, or the
                data are missing or not sufficient for a model. dg prints the message without a
                traceback.
        """
        try:
            self._write(request)
        except SluiceError as error:
            with contextlib.suppress(OSError):  # if the folder is not empty
                request.target_path.rmdir()
            raise click.ClickException(str(error)) from None

    def _write(self, request: dg.ScaffoldRequest[PipelineTemplate]) -> None:
        folder, params = request.target_path, request.params
        if request.scaffold_format != "yaml" or request.append:
            raise SettingsError(
                "A pipeline is written as a new folder with a defs.yaml.",
                fix="Leave out --format and --append.",
            )
        names = PipelineNames(
            name=require_name(folder.name),
            module=f"{_package_prefix(folder, request.project_root)}workload",
            code_file="workload.py",
            pipeline_file="defs.yaml",
            test_file=f"test_{folder.name}.py",
            written_by="dg scaffold",
            run_with=f"dg launch --job {folder.name}_training",
        )
        if params.data:
            create_pipeline(folder, Path(params.data), target=params.target or None, names=names)
            return
        if params.target:
            raise SettingsError(
                f"A target was given, '{params.target}', but no data.",
                fix="Pass --data with the path of your file, or leave out --target.",
            )
        sample = make_sample(params.template)
        write_files(folder, sample.files)
        create_pipeline(folder, folder / sample.data, target=sample.target, names=names)


def _package_prefix(folder: Path, project_root: Path | None) -> str:
    """Return the package of a folder with a dot at the end, such as 'project.defs.my_model.'.

    The result is empty if the folder is not in the package of the project. The module is then found
    because it is beside the pipeline file.
    """
    for root in _package_folders(project_root):
        if folder.resolve().is_relative_to(root):
            parts = folder.resolve().relative_to(root.parents[0]).parts
            if all(part.isidentifier() for part in parts):
                return ".".join(parts) + "."
    return ""


def _package_folders(project_root: Path | None) -> Iterator[Path]:
    """Yield the folders in which the top-level package of a dg project may be."""
    if project_root is None:
        return
    module = _root_module(project_root)
    top = module.partition(".")[0] if module else project_root.name.replace("-", "_")
    for parent in (project_root / "src", project_root):
        if (parent / top).is_dir():
            yield (parent / top).resolve()


def _root_module(project_root: Path) -> str:
    """Return the root module in the settings of a dg project; "" if it is not set."""
    for name, path in (("pyproject.toml", ("tool", "dg", "project")), ("dg.toml", ("project",))):
        try:
            values: Any = tomllib.loads((project_root / name).read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError):
            continue
        for key in path:
            values = values.get(key, {}) if isinstance(values, dict) else {}
        module = values.get("root_module") if isinstance(values, dict) else None
        if isinstance(module, str):
            return module
    return ""
