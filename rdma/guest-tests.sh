#!/usr/bin/env bash
# Inside the guest: everything that needs a real RDMA driver. Started by `./x rdma`, with the programs to run.
#
#   rdma/guest-tests.sh UNIT_TESTS VERBS_TESTS BEHAVIOUR_TESTS BATON
set -uo pipefail

unit=$1 verbs=$2 behaviour=$3 baton=$4
failed=()
# shellcheck source=rdma/guest-cluster.sh
source "${BASH_SOURCE[0]%/*}/guest-cluster.sh"

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

# A line of the doctor's JSON. Its own exit status is the caller's business: it fails for other lines too.
finding() {
    local report
    report=$("$baton" doctor --json || true)
    grep -o "{\"check\":\"$1\",\"of\":$2,[^}]*}" <<<"$report"
}

# expect CHECK OF STATUS SEEN: OF is `null` or a quoted name; SEEN is part of what is seen.
expect() {
    local line
    line=$(finding "$1" "$2") || { echo "the doctor says nothing of $1 $2"; return 1; }
    [[ $line == *"\"status\":\"$3\",\"seen\":\""*"$4"*'","expected":'* ]] && return
    echo "expected $1 $2 to be $3 with '$4', not $line"
    return 1
}

# What to do, up to the first `;`, `(` or the word `on`: the part that is a command.
advice() { finding "$1" "$2" | sed -n 's/.*"fix":"\([^";(]*\).*/\1/p' | sed 's/ on all hosts.*//'; }

doctor_finds_the_device() {
    "$baton" doctor || return 1
    expect 'rdma device' null ok 'rxe0, rxe1; rxe0 is used' &&
        expect 'rdma port' '"rxe0 port 1"' ok '4: ACTIVE' &&
        expect 'rdma user access' '"rxe0"' ok /dev/infiniband/uverbs &&
        expect 'rdma library' '"rxe0 port 1"' ok '10.77.0.1' &&
        expect 'gid' '"rxe0 port 1"' ok '10.77.0.1, RoCE v2' &&
        expect 'device limits' '"rxe0"' ok 'queue pairs' &&
        expect 'read depth' '"rxe0"' ok 'asks 128' &&
        expect 'mtu' '"rxe0 port 1"' ok 4096
}

# Followed to the letter, the advice ends the finding; and what it was about works.
advice_on_memlock() {
    BATON=$baton VERBS=$verbs setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock bash -c '
        baton=$BATON verbs=$VERBS
        '"$(declare -f finding expect advice)"'
        ulimit -l 1024
        expect memlock null failure "1 MiB" || exit 1
        ! "$baton" doctor >/dev/null || { echo "the doctor fails nothing"; exit 1; }
        fix=$(advice memlock null)
        [[ $fix == "ulimit -l "* ]] || { echo "no advice: $fix"; exit 1; }
        echo "following: $fix"
        eval "$fix" && expect memlock null ok unlimited && "$baton" doctor >/dev/null &&
            exec "$verbs" --test-threads 1 images_are_read'
}

advice_on_mtu() {
    local status=0 fix
    ip link set veth0 mtu 1500 || return 1
    expect mtu '"rxe0 port 1"' warning 1024 && fix=$(advice mtu '"rxe0 port 1"') && echo "following: $fix" &&
        [[ $fix == 'ip link set veth0 mtu '* ]] && eval "$fix" && expect mtu '"rxe0 port 1"' ok 4096 || status=1
    ip link set veth0 mtu 9000
    return $status
}

demo() {
    local report
    report=$("$baton" demo --transport rdma --seconds 6 --rate-scale 0.04 --json) || { echo "$report"; return 1; }
    echo "$report"
    grep -q '"transport":"rdma"' <<<"$report"
}

# Two hosts' responders, one on each device, read from each other.
matrix() {
    local node report pids=()
    for node in 0 1; do
        printf '%s\n' '[scheduler]' 'listen = "127.0.0.1:7400"' '[network]' 'transport = "rdma"' '[rdma]' \
            "device = \"rxe$node\"" '[[model]]' 'name = "m"' 'slo_ms = 100' 'alpha_ms = 1' 'beta_ms = 1' \
            'input_bytes = 8' '[[backend]]' 'name = "b"' >"/tmp/matrix$node.toml"
        "$baton" bench responder --config "/tmp/matrix$node.toml" --name "node$node" --idle park &
        pids+=($!)
    done
    report=$("$baton" bench matrix --config /tmp/matrix0.toml --hosts 2 --objects 4 --seconds 0.5 --json) || { echo "$report"; return 1; }
    echo "$report"
    [[ $(grep -o '"transport":"rdma"' <<<"$report" | wc -l) == 2 ]] && wait "${pids[@]}"
}

send_rate() {
    local report
    report=$("$baton" bench send-rate --transport rdma --seconds 1 --idle park --json) || { echo "$report"; return 1; }
    echo "$report"
    grep -q '"transport":"rdma".*"efficiency":null' <<<"$report"
}

# What a process makes of it that is to serve: `auto` does not hide it either.
processes_with_little_memlock() {
    local transport
    cluster_up rdma || return 1
    for transport in rdma auto; do
        member_file web "$transport" rxe1
        ends_with_error 'ulimit -l unlimited' with_little_memlock "$baton" load --config "$cluster/web.toml" --seconds 1 ||
            return 1
    done
    cluster_down
}

without_a_device() {
    rdma link del rxe0 && rdma link del rxe1 && without_rdma 'rdma link add'
}

without_a_library() {
    local status=0 library
    for library in /usr/lib/*/libibverbs.so.1; do mv "$library" "$library.hidden" || return 1; done
    without_rdma 'install rdma-core' || status=1
    for library in /usr/lib/*/libibverbs.so.1.hidden; do mv "$library" "${library%.hidden}" || return 1; done
    return $status
}

step "keys, ranges, drained queue pairs" "$unit" --test-threads 1 hub::
step "two nodes" "$verbs" --test-threads 1
step "the behaviour of every transport" "$behaviour" --test-threads 1 verbs::
step "two nodes and a lossy cable" with_loss "$verbs" --test-threads 1 images_are_read
step "answers and a lossy cable" with_loss "$verbs" --test-threads 1 messages::a{nswers_land,_frontend_that_does_not}
step "too little lockable memory" with_little_memlock "$verbs" --nocapture too_little_lockable
step "processes with too little lockable memory" processes_with_little_memlock
step "doctor: the device is found" doctor_finds_the_device
step "doctor: its advice on memlock helps" advice_on_memlock
step "doctor: its advice on the mtu helps" advice_on_mtu
step "baton demo --transport rdma" demo
step "baton bench matrix between two nodes" matrix
step "baton bench send-rate --transport rdma" send_rate
step "a cluster with TLS, RDMA and two READ depths" secured_cluster
step "wrong certificates" wrong_certificates
step "kill -9 of a backend under load" killed_backend
step "kill -9 of a frontend under load" killed_frontend
step "a cut cable under load" cut_cable
step "the cluster ends in order" cluster_down
step "no library" without_a_library
step "no device" without_a_device

if ((${#failed[@]})); then
    printf 'FAILED in the guest: %s\n' "${failed[@]}"
    exit 1
fi
echo "everything that needs RDMA passed in the guest"
