"""Pages need no network: MathJax and its fonts come with the site, and the build warns of what pages load from elsewhere."""

import importlib.util
from pathlib import Path

import loads
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.fileutil import copy_asset

LOGGER = logging.getLogger(__name__)


def mathjax() -> Path:
    """The folder of MathJax in the package that brings it."""
    found = importlib.util.find_spec("sphinx-mathjax-offline")
    if found is None or found.origin is None:
        raise ImportError("sphinx-mathjax-offline is not installed; it comes with `pip install .[docs]`")
    return Path(found.origin).parent / "static" / "mathjax"


def copy_mathjax(app: Sphinx, error: Exception | None) -> None:
    """The one component that pages load, what it loads in turn, and the fonts: 2 of 24 MB."""
    if error is None and app.builder.format == "html":
        for part in ("tex-chtml.js", "input/tex/extensions", "output/chtml/fonts"):
            target = app.outdir / "_static" / "mathjax" / part
            copy_asset(mathjax() / part, target if "." not in part else target.parent)


def check(app: Sphinx, error: Exception | None) -> None:
    """A warning for each address that the site loads from elsewhere."""
    if error is None and app.builder.format == "html":
        for page in [*Path(app.outdir).rglob("*.html"), *Path(app.outdir).rglob("*.css")]:
            for address in loads.external(page.read_text(), page.suffix == ".css"):
                LOGGER.warning("%s loads %s", page.relative_to(app.outdir), address)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's hook."""
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
