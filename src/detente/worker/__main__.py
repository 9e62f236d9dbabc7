"""``python -m detente.worker JOB.json``: run one job. Limits are set here, before anything heavy is imported."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys


def _limits() -> None:
    """CPU affinity (XLA sizes its pool by it at import), a cap on data memory, death with the parent, and every process
    that is started from here below this one."""
    cpus = os.environ.get("DETENTE_AFFINITY")
    if cpus:
        os.sched_setaffinity(0, {int(c) for c in cpus.split(",")})
    cap = os.environ.get("DETENTE_MEMORY_CAP")
    if cap:
        # RLIMIT_DATA, not RLIMIT_AS: frameworks reserve far more address space than they ever touch.
        resource.setrlimit(resource.RLIMIT_DATA, (int(cap), int(cap)))
    parent = os.environ.get("DETENTE_PARENT")
    try:
        c = ctypes.CDLL(None)
        c.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: a daemon's parent is this one, and its time this one's
        c.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive a parent that was killed
    except (OSError, AttributeError):
        return
    if parent and os.getppid() != int(parent):
        os._exit(1)  # it died before prctl took effect


def main() -> None:
    _limits()
    # Ctrl-C goes to the whole foreground group; the parent decides whether this process finishes or dies.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from detente.worker.run import run_file

    code = run_file(sys.argv[1])
    # The interpreter looks for cycles twice on its way out, which beside a framework takes up to a second, and its
    # memory goes with the process. Exit handlers run, and threads are waited for, as ever.
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    main()
