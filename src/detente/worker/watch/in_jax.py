"""One step as JAX's profiler saw it (names as of jaxlib 0.10.2)."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# One per executable that the client starts on a device, whoever asked for it (jit, a compiled object, jnp).
_LAUNCH = re.compile(r"LoadedExecutable::ExecuteHelperOnSingleDevice$|Executable::ExecuteHelper$")
# What a persistent cache saved, as JAX's own monitoring tells it (jax/_src/compiler.py).
_SAVED = "/jax/compilation_cache/compile_time_saved_sec"
# ``np.asarray``, ``float``, ``.item()`` and printing all go through this one.
_READ = re.compile(r"^np\.asarray\(jax\.Array\)$|copy_to_host_async$")
# Bytes that a trace may take; on a disk with less room it may have been cut.
_TRACE = 4 * 2**20


class CacheReads:
    """``saved_s``: seconds of compiling that entries of JAX's persistent cache have saved since this was made, whatever
    folder they were in."""

    def __init__(self) -> None:
        import jax.monitoring

        self.saved_s = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, name: str, seconds: float, **_: object) -> None:
        if name == _SAVED:
            self.saved_s += max(0.0, seconds)


def watch(run: Callable[[], Any]) -> dict[str, Any]:
    """What one call of ``run`` did: ``launches`` (executables that were started), ``reads`` (arrays copied to the
    host). What is handed over to the device is not counted: the profiler names no sizes, and a learning rate that
    changes is handed over by every honest step. Raises OSError where the trace could not be written."""
    import jax
    from jax.profiler import ProfileData

    with _temporary() as folder:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        try:
            with jax.profiler.trace(folder, profiler_options=options):
                run()
            (file,) = Path(folder).rglob("*.xplane.pb")
            data = ProfileData.from_file(str(file))
        except Exception:
            _need_room(
                Path(folder)
            )  # of a disk that is full the profiler raises an error of its own, or none
            raise
    names = [e.name for plane in data.planes for line in plane.lines for e in line.events]
    return {
        "launches": sum(bool(_LAUNCH.search(n)) for n in names),
        "reads": sum(bool(_READ.search(n)) for n in names),
    }


def _temporary() -> tempfile.TemporaryDirectory[str]:
    """A folder for the trace. Of disks that are all full Python says that there is no such folder."""
    try:
        return tempfile.TemporaryDirectory()
    except FileNotFoundError as error:
        said = (
            f"{os.strerror(errno.ENOSPC)} for temporary files ({error.strerror}): TMPDIR names another folder"
        )
        raise OSError(errno.ENOSPC, said) from error


def _need_room(folder: Path) -> None:
    """Raises OSError where a trace cannot be written: what was read of it is then no fault of the row's."""
    with (folder / "room").open("wb") as file:
        file.write(bytes(_TRACE))
