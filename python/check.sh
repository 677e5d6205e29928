#!/usr/bin/env bash
# The Python client: built into an environment of its own, its types checked, its tests run against a cluster of processes: `./x python`.
# usage: check.sh BATON TARGET_DIR [--short]; BATON is the command. Exit status 77: Python, pip or an index is missing.
# --short leaves out what needs another build: clippy, and `pip install` into a fresh environment.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$2/python-venv
export BATON=$1 CARGO_TARGET_DIR=$2/python

skip() {
    echo "python: $*" >&2
    exit 77
}

say() { echo "python: $*" >&2; }

# As a user does, with the build backend that pip fetches, but unoptimised: an optimised wheel takes minutes.
install_afresh() {
    local fresh=$CARGO_TARGET_DIR/fresh-venv
    rm -rf "$fresh"
    python3 -m venv "$fresh"
    MATURIN_PEP517_ARGS="--profile dev" "$fresh/bin/pip" install --quiet --disable-pip-version-check "$here"
    # Without numpy: an input is a buffer.
    (cd / && "$fresh/bin/python" -I -c 'import baton; print("installed", baton.__version__, baton.DROP_REASONS[:2])' >&2)
    rm -rf "$fresh"
}

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || skip "no Python 3.11 or later"
if [[ ! -f $venv/ready || $here/requirements-dev.txt -nt $venv/ready ]]; then
    rm -rf "$venv"
    python3 -m venv "$venv" 2>/dev/null || skip "no venv (Debian: python3-venv)"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 -r "$here/requirements-dev.txt" ||
        skip "pip cannot install requirements-dev.txt"
    touch "$venv/ready"
fi
cd "$here"
if [[ ${3:-} != --short ]]; then
    say "format and clippy"
    cargo fmt --check
    cargo clippy --quiet --locked -- -D warnings
    say "pip install ./python into a fresh environment"
    install_afresh
fi
say "build"
VIRTUAL_ENV=$venv "$venv/bin/maturin" develop --quiet --locked
say "ruff, mypy, stubtest"
"$venv/bin/ruff" format --check --quiet .
"$venv/bin/ruff" check --quiet .
"$venv/bin/mypy" python tests examples/*.py bench.py
"$venv/bin/python" -m mypy.stubtest --allowlist stubtest-allowlist.txt --ignore-unused-allowlist baton._native
say "tests"
"$venv/bin/pytest"
