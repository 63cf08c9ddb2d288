"""Publishes each version in its own folder, and writes the list of versions that every page reads.

`make docs` builds into `build/docs/<version>/` and keeps the other versions in `build/docs/`, so
that a server of static files can serve all versions. The list is a script, `versions.js`, because
browsers do not let a page fetch JSON if the page was opened as a file.
"""

import json
import re
from pathlib import Path

from sphinx.application import Sphinx

_REDIRECT = """\
<!doctype html>
<meta charset="utf-8">
<title>Sluice</title>
<meta http-equiv="refresh" content="0; url={newest}/index.html">
<link rel="canonical" href="{newest}/index.html">
<p><a href="{newest}/index.html">Documentation of Sluice {newest}</a></p>
"""


def version_key(name: str) -> tuple[tuple[int, ...], bool]:
    """Return a sort key: the numbers of a version, then whether it is no pre-release."""
    numbers = re.match(r"\d+(\.\d+)*", name)
    assert numbers is not None, name
    is_final = name == numbers[0]
    return tuple(map(int, numbers[0].split("."))), is_final


def list_versions(site: Path) -> list[str]:
    """Return the versions that were built into a site, the newest first."""
    names = [path.parent.name for path in site.glob("*/index.html")]
    return sorted((name for name in names if name[:1].isdigit()), key=version_key, reverse=True)


def write_versions(site: Path) -> None:
    """Write the list of versions, and a page that redirects to the newest version."""
    names = list_versions(site)
    (site / "versions.js").write_text(f"window.SLUICE_VERSIONS = {json.dumps(names)};\n")
    (site / "index.html").write_text(_REDIRECT.format(newest=names[0]))


def _write_after_build(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        write_versions(Path(app.outdir).parent)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("build-finished", _write_after_build)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
