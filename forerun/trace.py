"""The trace context that a request may carry (W3C Trace Context, level 1, `traceparent`).

Owns its form alone: nothing here traces.
"""

from __future__ import annotations

import re

# Version, trace id, parent id and flags; ids of zeros alone are invalid.
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def valid_traceparent(text: str) -> str:
    """`text` where it is a traceparent of version 00 (55 characters), else nothing: by the
    specification a request goes on without a context that cannot be read."""
    return text if _TRACEPARENT.fullmatch(text) else ""
