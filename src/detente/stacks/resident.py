"""What a process has resident."""

from __future__ import annotations

import re
from pathlib import Path


def resident() -> int:
    """VmRSS in bytes; 0 where the system does not tell."""
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0
