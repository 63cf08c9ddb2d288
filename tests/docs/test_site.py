"""The Sphinx extensions of the documentation site: links, versions and navigation."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load_extension(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "_ext" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_links_without_target_are_reported(tmp_path: Path) -> None:
    site = tmp_path / "1.0"
    (site / "sub").mkdir(parents=True)
    (site / "a.html").write_text(
        '<h1 id="top"></h1><a href="sub/b.html#here">1</a><a href="sub/b.html#there">2</a>'
        '<a href="#top">3</a><a href="https://example.org/x">4</a><img src="none.png">'
        '<script src="../versions.js"></script>'
    )
    (site / "sub" / "b.html").write_text('<a name="here"></a><a href="../a.html">up</a>')

    found = list(load_extension("link_check").find_broken_links(site))

    assert found == [
        ("a.html", "none.png", "no such file"),
        ("a.html", "sub/b.html#there", "no such section"),
    ]


def test_versions_are_listed_newest_first_and_index_opens_the_newest(tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0", "0.10.0rc1", "1.0.0", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text("")

    load_extension("versions").write_versions(tmp_path)

    assert (tmp_path / "versions.js").read_text() == (
        'window.SLUICE_VERSIONS = ["1.0.0", "0.10.0", "0.10.0rc1", "0.9.0"];\n'
    )
    assert "url=1.0.0/index.html" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("text", "path", "page", "shown"),
    [
        ("[a](../SECURITY.md#x)", "docs/security.md", None, "[a](project/security-policy.md#x)"),
        ("[a](../data.md)", "docs/how-to/x.md", None, "[a](../data.md)"),
        ("[a](docs/data.md)", "CONTRIBUTING.md", "docs/project/contributing.md", "[a](../data.md)"),
        (
            "[a](CHANGELOG.md)",
            "CONTRIBUTING.md",
            "docs/project/contributing.md",
            "[a](changelog.md)",
        ),
        ("[a](https://example.org)", "CONTRIBUTING.md", "docs/project/contributing.md", None),
        ("[a](#here)", "CONTRIBUTING.md", "docs/project/contributing.md", None),
    ],
)
def test_repository_links_become_site_links(
    text: str, path: str, page: str | None, shown: str | None
) -> None:
    assert load_extension("repository_links").rewrite_links(text, path, page or path) == (
        shown or text
    )


def test_navigation_lists_each_page_once_and_of_a_subfolder_only_its_readme() -> None:
    pages = list(load_extension("page_trees")._page_names(ROOT / "docs" / "reference"))

    assert len(pages) == len(set(pages))
    assert "api/README" in pages
    assert "settings" in pages
    assert not [page for page in pages if page.startswith("api/") and page != "api/README"]


def test_every_page_is_in_the_navigation() -> None:
    """A page in a folder with a README.md is listed there; others are named on the start page."""
    start = (ROOT / "docs" / "index.md").read_text()
    folders = {readme.parent for readme in (ROOT / "docs").rglob("README.md")}
    pages = [p for p in (ROOT / "docs").rglob("*.md") if folders.isdisjoint(p.parents)]
    names = {p.relative_to(ROOT / "docs").with_suffix("").as_posix() for p in pages} - {"index"}

    assert {name for name in names if f"\n{name}\n" not in start} == set()
