#!/usr/bin/env bash
# What CI needs from Debian or Ubuntu beyond Python: a browser that looks at the HTML report, and what torch.compile
# needs to build its kernels. Does nothing where all of it is there; without root it prints what is missing. Never
# fails: without these packages tests are skipped with their reason, and the stacks say why they are.
set -uo pipefail

python=${PYTHON:-python3}
missing=()
command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 ||
  command -v google-chrome >/dev/null 2>&1 || missing+=(chromium fonts-liberation)
command -v g++ >/dev/null 2>&1 || missing+=(g++)
"$python" - <<'PY' 2>/dev/null || missing+=(python3-dev)
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
PY
"$python" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)

if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "ci-packages: missing ${missing[*]}; as root on Debian: apt-get install ${missing[*]}" >&2
  exit 0
fi
echo "ci-packages: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
  echo "ci-packages: could not install all of ${missing[*]}; the tests that need them are skipped" >&2
exit 0
