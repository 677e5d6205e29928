#!/usr/bin/env bash
# Inside the guest: READ latency and bandwidth beside perftest's, in turns on the same device.
#
#   rdma/guest.sh -- rdma/guest-perftest.sh target/release/baton [ROUNDS]
#
# Prints a line for each run and ends with the ratios, ours to perftest's, of the medians over the rounds. Latency on
# Soft-RoCE comes in two kinds about 6 us apart, half of the READs each, so a median says which half is larger: the
# quartiles are compared, one for each kind. An input's trailer of 8 bytes is read with it: 4,088 + 8 are the 4,096 of
# perftest, one packet each; 4,096 + 8 would be two.
set -euo pipefail

baton=$1 rounds=${2:-5}
export RUST_LOG=error
table=/tmp/perftest.table
: >"$table"

# A server in the background and a client: what the client prints.
perftest() {
    "$@" -d rxe0 -x 1 -F -p 18515 >/dev/null 2>&1 &
    sleep 1
    "$@" -d rxe0 -x 1 -F -p 18515 127.0.0.1 2>/dev/null
    wait
}

note() { echo "$*" | tee -a "$table"; }

# Quartiles of perftest's own samples, us.
theirs_lat() {
    perftest ib_read_lat -s "$1" -n "$2" -U | awk -F, '/^[0-9]+,/ { print $2 + 0 }' | sort -n |
        awk '{ v[NR] = $1 } END { print v[int(NR / 4)], v[int(NR * 3 / 4)] }'
}

ours() { "$baton" bench "$1" --transport rdma --bytes "$2" --objects "$3" --seconds 2 --link-gbps 1 --json; }
field() { grep -o "\"$1\":[0-9.]*" | head -n 1 | cut -d: -f2; }

for ((round = 1; round <= rounds; round++)); do
    for size in 4096 150528; do
        bytes=$((size == 4096 ? 4088 : size)) samples=$((size == 4096 ? 4000 : 800))
        note "theirs lat $size $(theirs_lat "$size" "$samples")"
        report=$(ours read-lat "$bytes" 1)
        note "ours lat $size $(field p25 <<<"$report") $(field p75 <<<"$report")"
        rate=$(perftest ib_read_bw -s "$size" -n "$((size == 4096 ? 6000 : 400))" -t 16 -o 16 | awk -v s="$size" '$1 == s { print $4 }')
        note "theirs bw $size $(awk -v r="$rate" 'BEGIN { print r * 1.048576 }')"
        report=$(ours read-bw "$bytes" 16)
        note "ours bw $size $(awk -v r="$(field gigabytes_per_s <<<"$report")" 'BEGIN { print r * 1000 }')"
    done
done

median() { awk -v w="$1" -v k="$2" -v s="$3" -v c="$4" '$1 == w && $2 == k && $3 == s { print $c }' "$table" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
ratio() { awk -v a="$(median ours "$@")" -v b="$(median theirs "$@")" 'BEGIN { printf "%.3f", a / b }'; }

for size in 4096 150528; do
    echo "latency $size: $(ratio lat "$size" 4) of perftest's at the first quartile, $(ratio lat "$size" 5) at the third"
    echo "bandwidth $size: $(ratio bw "$size" 4) of perftest's"
done
