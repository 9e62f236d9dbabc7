#!/bin/sh
# What this project needs from the system, a line for each thing that is missing. Only Python, venv and the
# operating system can stop the set-up; everything else costs a stack, not the run.
set -u
python=${1:-python3}
stop=0
say() { echo "host: $*" >&2; }

if [ "$(uname -s)" != Linux ]; then say "this is $(uname -s); detente is tested on Linux"; fi
if ! command -v "$python" >/dev/null 2>&1; then
  say "no $python: install Python 3.11, 3.12 or 3.13, or name one with PYTHON="; exit 3
fi
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || {
  say "$($python --version) is not supported: Python 3.11, 3.12 or 3.13 is needed (PYTHON=python3.12)"; stop=3; }
"$python" -c 'import venv, ensurepip' 2>/dev/null || { say "no venv: Debian: apt install python3-venv"; stop=3; }
command -v g++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 ||
  say "no C++ compiler: torch-compile will be skipped on the CPU, and the bridge calls no kernels of its own (Debian: apt install g++)"
"$python" -c 'import sysconfig, os; raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
  say "no Python headers: torch-compile will be skipped on the CPU (Debian: apt install python3-dev)"
exit $stop
