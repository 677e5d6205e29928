#!/usr/bin/env bash
# Changes the sources in small ways, one at a time, and runs the tests on each change: docs/testing.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What is mutated: packages whose tests need no device and no other process. Tools and test beds are left out.
packages=(baton-core baton-scheduler baton-client baton-backend baton-rdma baton-leader baton-membership baton-topo baton-types)
target_dir=${CARGO_TARGET_DIR:-$PWD/target}
out=$target_dir/mutants
# Of the mutants of a change, at least this share must be found, in percent. What is tried is a sample of them: it is refused when tests
# that do find this share would find so few in less than one of a hundred samples.
floor=60

say() { printf 'mutants: %s\n' "$*" >&2; }

die() {
    say "error: $*"
    exit 2
}

usage() {
    cat >&2 <<'TEXT'
usage: ./x mutants [PATH… | --changed] [-- OPTIONS]

  PATH       a source file or a folder: its mutants; without any, those of all packages: thousands, for hours
  --changed  those of lines that the commits of the last day have changed, in random order
  OPTIONS    for cargo-mutants: --list shows them only, --shard 1/20 takes every twentieth

environment
  BATON_MUTANTS_S     stop after this many seconds; what has been tried by then counts
  BATON_MUTANTS_BASE  with --changed: count lines from this commit on
TEXT
}

# Where the changes begin: the last commit that is a day older than the newest.
base() {
    local newest
    newest=$(git log -1 --format=%ct)
    git rev-list -1 --first-parent --before=$((newest - 86400)) HEAD
}

count() { cat "$out/mutants.out/$1.txt" 2>/dev/null | wc -l; }

# Prints what came of it. False if the tests find too few of a change's mutants.
conclude() {
    local caught missed
    caught=$(($(count caught) + $(count timeout))) missed=$(count missed)
    echo "$((caught + missed)) mutants, $caught found by a test, $missed not; $(count unviable) do not compile"
    sed 's/^/  not found: /' "$out/mutants.out/missed.txt" 2>/dev/null || true
    is_plausible "$caught" $((caught + missed))
}

# Whether so few would be found of so many, or fewer, by tests that find the share `floor`: the binomial distribution.
is_plausible() {
    awk -v found="$1" -v tried="$2" -v share="$floor" 'BEGIN {
        share /= 100
        logarithm = tried * log(1 - share)
        for (k = 0; k <= found; k++) {
            sum += exp(logarithm)
            if (k < tried) logarithm += log((tried - k) / (k + 1) * share / (1 - share))
        }
        exit sum < 0.01
    }'
}

main() {
    local arguments=() changed='' status=0 limit=${BATON_MUTANTS_S:-}
    cargo mutants --version >/dev/null 2>&1 || die "no cargo-mutants: cargo install --locked cargo-mutants"
    while (($#)); do
        case $1 in
            -h | --help) usage; return ;;
            --changed) changed=yes ;;
            --) shift; arguments+=("$@"); break ;;
            -*) usage; die "unknown option '$1'; options for cargo-mutants come after --" ;;
            *)
                [[ -e $1 ]] || die "there is no '$1'"
                if [[ -d $1 ]]; then arguments+=(-f "${1%/}/**"); else arguments+=(-f "$1"); fi
                ;;
        esac
        shift
    done
    cargo nextest --version >/dev/null 2>&1 || arguments+=(--test-tool cargo)
    mkdir -p "$out"
    if [[ -n $changed ]]; then
        changed=${BATON_MUTANTS_BASE:-$(base)}
        [[ -n $changed ]] || die "the history here is too short: set BATON_MUTANTS_BASE"
        git diff "$changed" -- '*.rs' >"$out/changed.diff"
        say "lines changed since $(git log -1 --format='%h %s' "$changed")"
        arguments+=(--in-diff "$out/changed.diff" --shuffle)
    fi
    for package in "${packages[@]}"; do arguments+=(-p "$package"); done
    rm -rf "$out/mutants.out"
    # Where the limit interrupts it, its own backtrace says nothing.
    RUST_BACKTRACE=0 ${limit:+timeout --signal=INT "$limit"} cargo mutants -o "$out" "${arguments[@]}" || status=$?
    # 2: some were missed; 3: some ran out of time; 124: the limit was reached.
    case $status in
        0 | 2 | 3 | 124) ;;
        *) die "cargo-mutants ended with status $status" ;;
    esac
    [[ " ${arguments[*]} " == *" --list "* ]] || conclude
}

main "$@"
