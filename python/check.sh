#!/usr/bin/env bash
# The Python client: built into an environment of its own, its types checked, its tests run against a cluster of processes: `./x python`.
# usage: check.sh BATON TARGET_DIR; BATON is the command. Exit status 77: Python, pip or an index is missing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$2/python-venv
export BATON=$1 CARGO_TARGET_DIR=$2/python

skip() {
    echo "python: $*" >&2
    exit 77
}

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || skip "no Python 3.11 or later"
if [[ ! -f $venv/ready ]]; then
    rm -rf "$venv"
    python3 -m venv "$venv" 2>/dev/null || skip "no venv (Debian: python3-venv)"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 -r "$here/requirements-dev.txt" ||
        skip "pip cannot install requirements-dev.txt"
    touch "$venv/ready"
fi
cd "$here"
# As `pip install ./python`, but with the environment's maturin, and unoptimised: a wheel takes minutes to build.
VIRTUAL_ENV=$venv "$venv/bin/maturin" develop --quiet --locked
"$venv/bin/ruff" format --check --quiet . && "$venv/bin/ruff" check --quiet .
"$venv/bin/mypy" python tests examples/*.py bench.py
"$venv/bin/python" -m mypy.stubtest --allowlist stubtest-allowlist.txt --ignore-unused-allowlist baton._native
"$venv/bin/pytest" "${@:3}"
