#!/bin/sh
# Instructions per operation of the scheduling core, counted by valgrind: the same on every machine,
# however busy it is.
#
#   bench/callgrind.sh                  counts for the working tree
#   bench/callgrind.sh OLD [NEW]        compares two commits (NEW: the working tree if left out)
#
# Each operation runs COUNT and 2 COUNT times; the difference leaves start-up out.
set -eu
COUNT=20000
OPERATIONS="pass pass6"

command -v valgrind >/dev/null || {
    echo "callgrind.sh: SKIPPED, nothing was counted: valgrind is not installed" >&2
    exit 77
}
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# instructions BINARY OPERATION COUNT: all that the process executes.
instructions() {
    valgrind --tool=callgrind --callgrind-out-file="$work/out" "$1" "$2" "$3" 2>"$work/log" || {
        cat "$work/log" >&2
        exit 1
    }
    sed -n 's/^summary: *\([0-9]*\).*/\1/p' "$work/out"
}

# per_operation BINARY OPERATION
per_operation() {
    once=$(instructions "$1" "$2" $COUNT)
    twice=$(instructions "$1" "$2" $((2 * COUNT)))
    echo $(((twice - once) / COUNT))
}

# build TREE NAME: the benchmark of the sources in TREE becomes the binary NAME. Old and new have
# target folders of their own: cargo would take one tree's objects for the other's.
build() {
    target=${CARGO_TARGET_DIR:-$PWD/target}/callgrind-$(basename "$2")
    (cd "$1" && CARGO_TARGET_DIR="$target" cargo build --quiet --release -p baton-bench --example instructions)
    cp "$target/release/examples/instructions" "$2"
}

# build_commit COMMIT NAME: with the benchmark of the working tree, so that both sides do the same.
build_commit() {
    mkdir "$work/tree"
    git archive "$1" | tar -x -m -C "$work/tree"
    mkdir -p "$work/tree/bench/examples"
    cp bench/examples/instructions.rs "$work/tree/bench/examples/"
    build "$work/tree" "$2"
    rm -rf "$work/tree"
}

if [ $# -eq 0 ]; then
    build . "$work/new"
    printf '%-12s %12s\n' operation instructions
    for operation in $OPERATIONS; do
        printf '%-12s %12s\n' "$operation" "$(per_operation "$work/new" "$operation")"
    done
    exit 0
fi

build_commit "$1" "$work/old"
if [ $# -gt 1 ]; then build_commit "$2" "$work/new"; else build . "$work/new"; fi
printf '%-12s %12s %12s %8s\n' operation old new ratio
for operation in $OPERATIONS; do
    old=$(per_operation "$work/old" "$operation")
    new=$(per_operation "$work/new" "$operation")
    printf '%-12s %12s %12s %8s\n' "$operation" "$old" "$new" "$(awk "BEGIN { printf \"%.2f\", $new / $old }")"
done
