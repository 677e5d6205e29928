#!/usr/bin/env bash
# Inside the guest: everything that needs a real RDMA driver. Started by `./x rdma`, with the programs to run.
#
#   rdma/guest-tests.sh UNIT_TESTS VERBS_TESTS BEHAVIOUR_TESTS BATON
set -uo pipefail

unit=$1 verbs=$2 behaviour=$3 baton=$4
failed=()

step() {
    local title=$1
    shift
    echo "=== $title"
    "$@" && return
    failed+=("$title")
    echo "=== FAILED: $title"
}

# One packet in fifty is lost each way; the device sends it again.
with_loss() {
    local end status=0
    for end in veth0 veth1; do tc qdisc add dev $end root netem loss 2% || return 1; done
    "$@" || status=$?
    for end in veth0 veth1; do tc qdisc del dev $end root; done
    return $status
}

# Root may lock any amount of memory unless it lacks this capability.
with_little_memlock() {
    BATON_MEMLOCK_LOW=1 setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock bash -c 'ulimit -l 1024 && exec "$@"' - "$@"
}

demo() {
    local report
    report=$("$baton" demo --transport rdma --seconds 6 --rate-scale 0.04 --json) || { echo "$report"; return 1; }
    echo "$report"
    grep -q '"transport":"rdma"' <<<"$report"
}

without_a_device() {
    rdma link del rxe0
    rdma link del rxe1
    env -u BATON_VERBS -u BATON_VERBS_PAIR "$verbs" --nocapture rdma_on_a_host_without | tee /tmp/without
    grep -q '1 passed' /tmp/without
}

step "keys, ranges, drained queue pairs" "$unit" --test-threads 1 hub::
step "two nodes" "$verbs" --test-threads 1
step "the behaviour of every transport" "$behaviour" --test-threads 1 verbs::
step "two nodes and a lossy cable" with_loss "$verbs" --test-threads 1 images_are_read
step "too little lockable memory" with_little_memlock "$verbs" --nocapture too_little_lockable
step "baton demo --transport rdma" demo
step "no device" without_a_device

if ((${#failed[@]})); then
    printf 'FAILED in the guest: %s\n' "${failed[@]}"
    exit 1
fi
echo "everything that needs RDMA passed in the guest"
