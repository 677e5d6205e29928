#!/usr/bin/env bash
# Plants each bug of this folder in a scratch copy of the tree and runs the tests that should find it (docs/testing.md).
#
#   bank/run.sh [--swarm SEEDS] [NAME…]
#
# NAME is a patch's name or its beginning: `017` or `017-quota-clock`. Without one, the script takes every patch. With --swarm
# the tests stay out, and the swarm of that build runs SEEDS seeds instead, for the patches that say `swarm: yes` or that NAME names.
# The table goes to stdout, everything else to stderr.
#
# Exit status: 1 if a bug is found by nothing (but says `found: nothing yet`), does not apply or does not compile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target_dir=${CARGO_TARGET_DIR:-$PWD/target}
[[ $target_dir == /* ]] || target_dir=$PWD/$target_dir
home=$target_dir/bank
tree=$home/tree
limit_s=${BATON_BANK_LIMIT_S:-300}

# Tests are built for speed of building: a bug costs little but linking.
export CARGO_TARGET_DIR=$home/target CARGO_PROFILE_DEV_DEBUG=0 CARGO_TERM_COLOR=never
# A failed property is proof enough; it is neither shrunk nor kept.
export PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=true
# The scratch tree has no repository of its own, and must not be taken for a part of the one around it.
export GIT_CEILING_DIRECTORIES=$home

say() { printf 'bank: %s\n' "$*" >&2; }

die() {
    say "error: $*"
    exit 1
}

# Brings the scratch tree up to date. Files that are the same keep their time, so that cargo builds only what has changed.
refresh_tree() {
    local file
    mkdir -p "$tree"
    git ls-files --cached --others --exclude-standard | sort >"$home/files"
    while IFS= read -r file; do
        cmp -s "$file" "$tree/$file" && continue
        [[ -f $file ]] || continue
        mkdir -p "$tree/$(dirname "$file")"
        cp "$file" "$tree/$file"
        touch "$tree/$file" # later than any build that knew the file's former text
    done <"$home/files"
    (cd "$tree" && find . -type f | sed 's#^\./##' | sort) | comm -13 "$home/files" - | while IFS= read -r file; do
        rm -f "$tree/$file"
    done
}

# The value of a line `# KEY: VALUE` in a patch's header.
header() { sed -n "/^--- /q; s/^# $2: *//p" "$1"; }

plant() { (cd "$tree" && git apply "${@:2}" "$1"); }

# The first failed test in the output of nextest, or of cargo test.
first_failure() {
    local name
    name=$(sed -nE 's/^ *(FAIL|TIMEOUT|ABORT|SIG[A-Z]+) \[[^]]*\] (\([^)]*\) )?//p' "$1" | head -n 1)
    [[ -n $name ]] || name=$(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$1" | head -n 1)
    printf '%s' "$name"
}

# Runs the tests of these packages. Sets `found`: what failed, or nothing.
run_tests() {
    local packages=() package status=0 log=$home/log test_command quiet
    for package in "$@"; do packages+=(-p "$package"); done
    found=
    if cargo nextest --version >/dev/null 2>&1; then
        test_command=(cargo nextest run --locked "${packages[@]}")
        quiet=(--status-level fail --final-status-level none --color never)
    else
        test_command=(cargo test --locked --lib --bins --tests "${packages[@]}")
        quiet=()
    fi
    (cd "$tree" && "${test_command[@]}" --no-run) >"$log" 2>&1 || { tail -n 40 "$log" >&2; return 1; }
    (cd "$tree" && timeout "$limit_s" "${test_command[@]}" "${quiet[@]}") >"$log" 2>&1 || status=$?
    case $status in
        0) ;;
        124) found="no end in $limit_s s" ;;
        *) found=$(first_failure "$log") ;;
    esac
    [[ $status == 0 || -n $found ]] || { tail -n 40 "$log" >&2; return 1; }
}

# Sets `found`: the lowest seed that failed, how many did, and how long they took. Optimised a little: a debug build takes
# minutes for what this takes seconds.
run_swarm() {
    local seeds=$1 log=$home/log start failures build=(cargo build --locked --profile bank)
    build+=(--config 'profile.bank.inherits="dev"' --config profile.bank.opt-level=1)
    (cd "$tree" && "${build[@]}") >"$log" 2>&1 || { tail -n 40 "$log" >&2; return 1; }
    start=$SECONDS found=
    timeout "$limit_s" "$CARGO_TARGET_DIR/bank/baton" sim cluster --swarm --seeds "$seeds" >"$log" 2>&1 || [[ $? != 124 ]] ||
        found="no end in $limit_s s; "
    failures=$(sed -nE 's/^.*seed ([0-9]+) failed: (.*)$/\1 \2/p' "$log" | sort -n)
    [[ -z $failures ]] ||
        found+="$(wc -l <<<"$failures") of $seeds seeds in $((SECONDS - start)) s, first ${failures%%$'\n'*}"
}

# Prints one row of the table; false if the bug is not found, or is not a bug any more.
examine() {
    local patch=$1 seeds=$2 name start=$SECONDS status=0 packages
    name=$(basename "$patch" .patch)
    plant "$patch" || { row "$name" "DOES NOT APPLY" 0; return 1; }
    read -ra packages <<<"$(header "$patch" tests)"
    if [[ -n $seeds ]]; then run_swarm "$seeds"; else run_tests "${packages[@]}"; fi || status=$?
    plant "$patch" --reverse || die "$name cannot be taken back; the next run begins with a clean copy"
    if [[ $status != 0 ]]; then
        row "$name" "DOES NOT BUILD" $((SECONDS - start))
        return 1
    fi
    row "$name" "${found:-nothing}" $((SECONDS - start))
    [[ -n $found || -n $seeds || $(header "$patch" found) == "nothing yet" ]]
}

row() { printf '%-44s %5d s  %s\n' "$1" "$3" "$2"; }

# What fails without a bug finds none.
check_without_bugs() {
    local patch packages=()
    if [[ -n $2 ]]; then
        say "$2 seeds of the swarm without a bug"
        run_swarm "$2" </dev/null || die "it does not build"
        [[ -z $found ]] || die "without a bug this fails: $found"
        return
    fi
    while IFS= read -r patch; do
        mapfile -t -O "${#packages[@]}" packages < <(header "$patch" tests | tr ' ' '\n')
    done <<<"$1"
    mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
    say "the tests of ${packages[*]} without a bug"
    run_tests "${packages[@]}" </dev/null || die "they do not build"
    [[ -z $found ]] || die "without a bug this fails: $found"
}

# The patches that the arguments name, and for the swarm those that it should find.
choose() {
    local seeds=$1 patch name
    shift
    for name in "$@"; do
        compgen -G "$PWD/bank/$name*.patch" | sort || die "there is no bug $name in bank/"
    done
    [[ $# == 0 ]] || return 0
    for patch in "$PWD"/bank/*.patch; do
        [[ -n $seeds && $(header "$patch" swarm) != yes ]] || printf '%s\n' "$patch"
    done
}

main() {
    local seeds='' patches patch failed=0 count=0 found
    if [[ ${1:-} == --swarm ]]; then
        seeds=${2:-}
        [[ $seeds =~ ^[1-9][0-9]*$ ]] || die "--swarm: SEEDS must be a whole number above 0, not '$seeds'"
        shift 2
    fi
    patches=$(choose "$seeds" "$@")
    refresh_tree
    check_without_bugs "$patches" "$seeds"
    while IFS= read -r patch; do
        say "$(basename "$patch" .patch)"
        count=$((count + 1))
        examine "$patch" "$seeds" </dev/null || failed=$((failed + 1))
    done <<<"$patches"
    say "$count bugs; $failed with something wrong"
    [[ $failed == 0 ]]
}

main "$@"
