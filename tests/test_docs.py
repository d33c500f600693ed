"""Pages about the code say what the code is."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


STUDIES = ROOT / "scripts" / "studies"


def study(name):
    if str(STUDIES) not in sys.path:
        sys.path.append(str(STUDIES))  # as when it is run: studies use files beside them
    spec = importlib.util.spec_from_file_location(name, STUDIES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_architecture_names_every_part():
    text = (DOCS / "architecture.md").read_text()
    table = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    package = ROOT / "jaxrl_hpc"
    parts = {p.stem for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    missing = [part for part in parts - {"__init__"} if f"`{part}`" not in table]
    assert not missing


def test_links_between_pages_lead_somewhere():
    broken = []
    # made by `make docs`
    made = {DOCS / name for name in ("reference/api.md", "reference/config.md", "gallery.md")}
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            path = (page.parent / target).resolve()
            if "://" not in target and path not in made and not path.exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


def test_index_of_results(tmp_path):
    index = study("index")
    (tmp_path / "one.md").write_text("# Title\n\nMade by `x`.\n\n## Part\nA [link](b.md) is here. More.\n")
    (tmp_path / "index.md").write_text("# old")
    text = index.index(tmp_path)
    assert "| [Title](one.md) | A link is here |" in text and "old" not in text


def test_every_result_is_in_the_index():
    listed = (DOCS / "results" / "index.md").read_text()
    pages = [p.name for p in (DOCS / "results").glob("*.md") if p.name != "index.md"]
    missing = [name for name in pages if f"]({name})" not in listed]
    assert not missing, "run python scripts/studies/index.py"


def test_agents_page_lists_all_configs():
    page = (DOCS / "agents.md").read_text()
    assert study("pairs").with_table(page) == page, "run python scripts/studies/pairs.py"


def test_environments_page_lists_what_a_config_can_name():
    page = (DOCS / "environments.md").read_text()
    assert study("environments").with_table(page) == page, "run python scripts/studies/environments.py"


def test_numbers_of_the_readme_are_measured():
    page = (ROOT / "README.md").read_text()
    assert study("readme").with_table(page) == page, "run python scripts/studies/readme.py"


def test_performance_page_is_made_from_its_data():
    performance = study("performance")
    files = {kind: performance.data_file(kind) for kind in performance.PAGE_KINDS}
    reports = {kind: json.loads(f.read_text()) for kind, f in files.items() if f.exists()}
    if not reports:
        pytest.skip("nothing is measured yet")
    assert performance.page(reports) == (DOCS / "performance.md").read_text()
