"""The suite of cases is a package beside its tests, so that a script can run it without pytest."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
