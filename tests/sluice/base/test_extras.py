"""An error about a missing package names the extra that contains it."""

import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from sluice.base.errors import SettingsError
from sluice.base.extras import EXTRAS, missing_extra, missing_filesystem, naming_extras
from sluice.cli.app import run_command

ROOT = Path(__file__).resolve().parents[3]
WITHOUT_AN_OWN_REQUIREMENT = {"starlette", "dagster_shared"}
"""Modules of packages that come with another package of the same extra."""


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(extra: str) -> set[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return {normalised(re.match(r"[\w.-]+", line)[0]) for line in extras[extra]}


def test_every_extra_that_users_install_has_its_modules():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    # docs and dev have the tools of a checkout
    assert EXTRAS.keys() == extras.keys() - {"dev", "docs"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_modules_of_an_extra_are_those_of_its_requirements(extra):
    by_module = packages_distributions()
    installed = {module: by_module.get(module, [module]) for module in EXTRAS[extra]}

    for module, names in installed.items():
        if module not in WITHOUT_AN_OWN_REQUIREMENT:
            wanted = requirements(extra)
            assert any(
                own == wanted_name or wanted_name.startswith(f"{own}-")
                for own in map(normalised, names)
                for wanted_name in wanted
            ), f"{module} of {names} is no requirement of {extra}: {wanted}"


def test_the_whole_line_contains_what_users_of_a_part_install():
    text = (ROOT / "pyproject.toml").read_text()
    (line,) = re.findall(r'"sluice-mlops\[(images[^\]]*)\]"', text)

    assert set(line.split(",")) == {"images", "reports", "search", "serving"}


def missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def absent(monkeypatch):
    """Let every package look as if it were not installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("dagster", "pipeline"),
        ("sqlalchemy.orm", "registry"),
        ("ray.tune", "search"),
        ("PIL", "images"),
    ],
)
def test_the_error_names_package_extra_and_command(module, extra):
    with pytest.raises(SettingsError) as caught, naming_extras("sluice run"):
        raise missing(module)

    package = module.partition(".")[0]
    assert (
        caught.value.what == f"sluice run requires the package {package}, which is not installed."
    )
    assert f"'{extra}'" in caught.value.cause
    assert caught.value.fix.endswith(f"pip install '.[{extra}]'")


@pytest.mark.usefixtures("absent")
def test_a_url_whose_package_is_missing_names_the_extra():
    for url in ("s3://bucket/rows.csv", "filecache::s3://bucket/rows.csv"):
        fix = missing_filesystem(url)
        assert "require the package s3fs" in fix
        assert fix.endswith("pip install '.[s3]'")
    assert missing_filesystem("rows.csv") == missing_filesystem("https://host/rows.csv") == ""


@pytest.mark.usefixtures("absent")
def test_a_package_of_no_extra_keeps_its_error():
    with pytest.raises(ModuleNotFoundError, match="my_model"), naming_extras("sluice run"):
        raise missing("my_model")


def test_a_missing_module_of_an_installed_package_keeps_its_error():
    """The package is damaged or too old; installing the extra would not help."""
    assert missing_extra(missing("sqlalchemy.no_such_module"), "sluice run") is None


@pytest.mark.usefixtures("absent")
def test_a_command_that_lacks_its_extra_is_an_error_of_the_user(monkeypatch, capsys):
    def register(_):
        raise missing("dagster")

    monkeypatch.setattr("sluice.cli.orchestration.commands.register", register)

    assert run_command(["run", "digits"]) == 2
    assert "sluice run requires the package dagster" in capsys.readouterr().err
