"""Reading compiled programs."""

from __future__ import annotations

import re

SHAPE = re.compile(r"%?[\w.-]+ = (\w+)\[([\d,]*)\][^ ]* copy(?:-start)?\(")
BYTES = {"f32": 4, "s32": 4, "u32": 4, "u8": 1, "s8": 1, "pred": 1, "f64": 8, "u64": 8, "s64": 8, "u16": 2}


def copies_of_at_least(text: str, size: int) -> list[str]:
    """Lines of an HLO text that copy `size` bytes or more, wherever they stand."""
    found = []
    for line in text.splitlines():
        match = SHAPE.search(line)
        if match:
            elements = 1
            for side in filter(None, match[2].split(",")):
                elements *= int(side)
            if elements * BYTES.get(match[1], 4) >= size:
                found.append(line.strip())
    return found
