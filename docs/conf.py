"""The site: `make docs` builds it from these pages with Sphinx, strictly and without a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import api_reference  # noqa: E402
import config_reference  # noqa: E402
import diagrams  # noqa: E402
import gallery_page  # noqa: E402

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
suppress_warnings = ["toc.not_included"]  # results are reached by their index
highlight_language = "none"  # of blocks that name none: commands and their output
html_theme = "furo"
html_title = f"jaxrl_hpc {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_js_files = ["accessible.js"]

api_reference.write_reference(HERE / "reference" / "api.md")
config_reference.write_reference(HERE / "reference" / "config.md")
diagrams.write()
gallery_page.write_gallery(HERE / "gallery.md")
contributing = (HERE.parent / "CONTRIBUTING.md").read_text().replace("](docs/", "](")
(HERE / "contributing.md").write_text(contributing)


def setup(app: Any) -> None:
    """Links to CONTRIBUTING.md, which in the repository is outside of docs, lead to its copy on the site."""

    def links(_: Any, __: str, source: list[str]) -> None:
        source[0] = re.sub(r"\]\((?:\.\./)+CONTRIBUTING\.md", "](/contributing.md", source[0])

    app.connect("source-read", links)
