"""The examples of docs/api.md and of the README run, from top to bottom."""

import re
from pathlib import Path

import pytest

import jaxrl_hpc as rl

ROOT = Path(__file__).resolve().parents[2]


def code_of(page: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks, f"{page} has no examples"
    return "\n".join(blocks)


@pytest.mark.full
@pytest.mark.parametrize("page", ["docs/api.md", "README.md"])
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = re.sub(r"steps=[\d_]+", "steps=2_000", code_of(page))
    exec(compile(small, page, "exec"), {})


def test_the_page_names_everything():
    text = (ROOT / "docs" / "api.md").read_text()
    spaces = (rl.agents, rl.replay, rl.workflows)
    known = [name for name in rl.__all__ if name not in ("config", "Comparison", "Policy", "Run")]
    missing = [name for name in known if f"rl.{name}" not in text]
    missing += [name for space in spaces for name in space.__all__ if f"`{name}" not in text]
    assert not missing
