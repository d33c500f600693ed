"""The site: `make docs` builds it from these pages with Sphinx, strictly and without a network."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from config_reference import write_reference  # noqa: E402

import jaxrl_hpc  # noqa: E402

project = "jaxrl_hpc"
author = "The jaxrl_hpc developers"
release = jaxrl_hpc.__version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_build", "README.md", "examples/**/README.md"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
# links to files of the repository (configs, scripts) are text on the site
suppress_warnings = ["myst.xref_missing", "myst.header"]
html_theme = "furo"
html_title = f"jaxrl_hpc {release}"
html_copy_source = False

write_reference(HERE / "reference" / "config.md")


def setup(app):
    """Diagrams in mermaid stay text: drawing them would need a browser at build time."""
    from pygments.lexers.special import TextLexer

    app.add_lexer("mermaid", TextLexer)
