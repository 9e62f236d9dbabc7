"""One step as JAX's profiler saw it (names as of jaxlib 0.10.2)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# One per executable that the client starts on a device, whoever asked for it (jit, a compiled object, jnp).
_LAUNCH = re.compile(r"LoadedExecutable::ExecuteHelperOnSingleDevice$|Executable::ExecuteHelper$")
# ``np.asarray``, ``float``, ``.item()`` and printing all go through this one.
_READ = re.compile(r"^np\.asarray\(jax\.Array\)$")
_PLACE = re.compile(r"BufferFromHost|TransferToDevice|device_put", re.IGNORECASE)


def watch(run: Callable[[], Any]) -> dict[str, Any]:
    """What one call of ``run`` did: ``launches`` (executables that were started), ``reads`` (arrays copied to the
    host), ``places`` (host arrays that were handed over)."""
    import jax
    from jax.profiler import ProfileData

    with tempfile.TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            run()
        (file,) = Path(folder).rglob("*.xplane.pb")
        data = ProfileData.from_file(str(file))
    names = [e.name for plane in data.planes for line in plane.lines for e in line.events]
    return {
        "launches": sum(bool(_LAUNCH.search(n)) for n in names),
        "reads": sum(bool(_READ.search(n)) for n in names),
        "places": sum(bool(_PLACE.search(n)) for n in names),
    }
