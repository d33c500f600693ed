"""Tables that scripts keep up to date inside pages which people write."""

from __future__ import annotations

END = "<!-- end of table -->"


def replaced(page: str, begin: str, table: str) -> str:
    """The page with this table between the line `begin` and the next END."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(END)
    return f"{before}{begin}\n{table}\n{END}{after}"


def with_head(page: str, head: list[str]) -> str:
    """The page with these lines before its first figure or table."""
    lines = page.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(("![", "|"))), len(lines))
    return "\n".join([*head, "", *lines[first:]]) + "\n"
