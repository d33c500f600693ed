"""Every notebook runs from top to bottom, at small size; what is stored in it is small and without errors."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
MOST_BYTES = 400_000


def test_there_are_notebooks():
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_one_import_of_ours(path):
    """The API is enough."""
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    lines = [
        line for source in cells for line in source.splitlines() if re.search(r"\bimport\b.*jaxrl_hpc", line)
    ]
    assert lines == ["import jaxrl_hpc as rl"]
    assert not [source for source in cells if re.search(r"^\s*from jaxrl_hpc", source, re.MULTILINE)]


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# ipykernel and its event loop warn about things that are not ours
@pytest.mark.filterwarnings("default::DeprecationWarning", "default::ResourceWarning")
@pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning")
def test_notebook_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXRL_HPC_SMALL", "1")
    monkeypatch.chdir(tmp_path)  # nothing may depend on where it is started
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=1500, kernel_name="python3").execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs(path):
    assert path.stat().st_size < MOST_BYTES
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells), "store the notebook with its outputs"
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
