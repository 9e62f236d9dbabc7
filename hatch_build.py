"""What an installation does beyond copying: the bridge's kernels are compiled, if what that takes is here.

It takes a C++ compiler, and JAX's headers in the environment that is installed into: they are looked for there, because
a build of pip's sees none of its packages. Without them the wheel is one of Python alone, and the extension is built at
its first use.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(Path(self.root) / "src"))
        try:
            from detente.bridge.kernels.extension import FOLDER, ship
        finally:
            del sys.path[0]
        include = Path(sysconfig.get_path("platlib")) / "jaxlib/include"
        try:
            made = ship(include)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", "") or str(error)).strip()
            self.app.display_warning(f"the bridge's kernels are built at their first use: {said[-500:]}")
            return
        if made and version != "editable":
            build_data["artifacts"].append(str(FOLDER.relative_to(self.root) / "*.so"))
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
