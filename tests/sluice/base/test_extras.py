"""An error about a missing package names the extra that contains it."""

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from sluice.base.errors import SettingsError
from sluice.base.extras import EXTRAS, missing_extra_error, missing_filesystem_advice, naming_extras
from sluice.cli.app import run_command

ROOT = Path(__file__).resolve().parents[3]
WITHOUT_AN_OWN_REQUIREMENT = {"starlette", "dagster_shared"}
"""Modules that a requirement of the same extra installs as a dependency."""


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_requirements(extra: str) -> set[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return {normalize(re.match(r"[\w.-]+", line)[0]) for line in extras[extra]}


def test_every_extra_of_pyproject_has_modules():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    # The extras docs and dev contain development tools.
    assert EXTRAS.keys() == extras.keys() - {"dev", "docs"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_modules_of_an_extra_are_provided_by_its_requirements(extra):
    by_module = packages_distributions()
    installed = {module: by_module.get(module, [module]) for module in EXTRAS[extra]}

    for module, names in installed.items():
        if module not in WITHOUT_AN_OWN_REQUIREMENT:
            required = read_requirements(extra)
            assert any(
                distribution == requirement or requirement.startswith(f"{distribution}-")
                for distribution in map(normalize, names)
                for requirement in required
            ), f"{module} of {names} is not a requirement of {extra}: {required}"


def test_extra_for_the_whole_line_contains_the_other_extras():
    text = (ROOT / "pyproject.toml").read_text()
    (line,) = re.findall(r'"sluice-mlops\[(images[^\]]*)\]"', text)

    assert set(line.split(",")) == {"images", "reports", "search", "serving"}


def make_import_error(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def no_packages(monkeypatch):
    """Make every package appear as not installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


@pytest.mark.usefixtures("no_packages")
@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("dagster", "pipeline"),
        ("sqlalchemy.orm", "registry"),
        ("ray.tune", "search"),
        ("PIL", "images"),
    ],
)
def test_import_error_names_package_extra_and_command(module, extra):
    with pytest.raises(SettingsError) as caught, naming_extras("sluice run"):
        raise make_import_error(module)

    package = module.partition(".")[0]
    assert (
        caught.value.what == f"sluice run requires the package {package}, which is not installed."
    )
    assert f"'{extra}'" in caught.value.cause
    assert caught.value.fix.endswith(f"pip install '.[{extra}]'")


@pytest.mark.usefixtures("no_packages")
def test_missing_file_system_package_names_the_extra():
    for url in ("s3://bucket/rows.csv", "filecache::s3://bucket/rows.csv"):
        fix = missing_filesystem_advice(url)
        assert "require the package s3fs" in fix
        assert fix.endswith("pip install '.[s3]'")
    assert (
        missing_filesystem_advice("rows.csv")
        == missing_filesystem_advice("https://host/rows.csv")
        == ""
    )


@pytest.mark.usefixtures("no_packages")
def test_import_error_of_a_package_in_no_extra_is_unchanged():
    with pytest.raises(ModuleNotFoundError, match="my_model"), naming_extras("sluice run"):
        raise make_import_error("my_model")


def test_missing_module_of_an_installed_package_suggests_no_extra():
    """The package is damaged or too old; installing the extra would not help."""
    assert missing_extra_error(make_import_error("sqlalchemy.no_such_module"), "sluice run") is None


@pytest.mark.usefixtures("no_packages")
def test_command_without_its_extra_exits_with_a_user_error(monkeypatch, capsys):
    def register(_):
        raise make_import_error("dagster")

    monkeypatch.setattr("sluice.cli.orchestration.commands.register", register)

    assert run_command(["run", "digits"]) == 2
    assert "sluice run requires the package dagster" in capsys.readouterr().err
