"""Numbers formatted for display."""

from __future__ import annotations

import math


def count(value: float) -> str:
    """Three significant digits with k, M, G, T: 1234567 -> 1.23M."""
    if not math.isfinite(value):
        return "–"
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit * 0.9995:
            return f"{_digits(value / limit)}{suffix}"
    return _digits(value)


def size(number_of_bytes: float) -> str:
    """Powers of 1024: 1536 -> 1.5 KiB."""
    for power, suffix in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(number_of_bytes) >= 1024**power:
            return f"{number_of_bytes / 1024**power:.1f} {suffix}"
    return f"{number_of_bytes:.0f} B"


def duration(seconds: float) -> str:
    """12 s, 3 min 05 s, 2 h 07 min, 3 d 04 h."""
    if not math.isfinite(seconds):
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def _digits(value: float) -> str:
    """At least three significant digits, no exponent, no trailing zeros after a whole number."""
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    magnitude = abs(value)
    decimals = 2 if magnitude < 10 else 1 if magnitude < 100 else 0
    if magnitude < 0.1:
        return f"{value:.3g}"
    return f"{value:.{decimals}f}"
