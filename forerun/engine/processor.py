"""Refuses, when imported, a processor on which NumPy would die of an illegal instruction.

It is the first import of this package. The native module itself runs on any x86-64.
"""

from __future__ import annotations

from forerun import _native

if not _native.detect_cpu().x86_64_v2:
    raise RuntimeError(
        "this processor has no SSSE3, SSE4 and POPCNT (x86-64-v2), which NumPy needs; "
        "run forerun on a processor of 2009 or later"
    )
