# Sourced by guest-tests.sh: clusters of processes with RDMA between them, and what becomes of their tasks when one of
# them is killed, the cable is cut or the host lacks something. `$baton` and `$verbs` are the programs.

cluster=/tmp/cluster
certs=${BASH_SOURCE[0]%/*}/../examples/certs.sh
declare -A pids=()

# member_file NAME TRANSPORT DEVICE [LINE]: the cluster file of one member, with a line for its [rdma].
member_file() {
    local name=$1 transport=$2 device=$3 line=${4:-} backend
    cat >"$cluster/$name.toml" <<TOML
[scheduler]
listen = "127.0.0.1:7410"
idle = "park"
[network]
jitter_us = 20000
response_us = 20000
transport = "$transport"
# The emulated CPU looks at a completion late; that is no reason to read again.
[rdma]
device = "$device"
read_timeout_ms = 500
ack_timeout = 14
$line
[tls]
ca = "ca.pem"
cert = "$name.pem"
key = "$name.key"
schedulers = ["scheduler"]
backends = ["a", "b"]
frontends = ["web"]
[frontend]
slots_per_model = 256
[[model]]
name = "m"
alpha_ms = 30
beta_ms = 20
slo_ms = 2000
batch_max = 8
input_bytes = 40000
[[model]]
name = "urgent"
alpha_ms = 30
beta_ms = 20
slo_ms = 500
batch_max = 4
input_bytes = 4000
TOML
    for backend in a b; do
        printf '[[backend]]\nname = "%s"\nidle = "park"\n' "$backend" >>"$cluster/$name.toml"
    done
}

# Backends on one device, frontends on the other; `a` asks for fewer READs at once than frontends give.
member_files() {
    mkdir -p "$cluster" || return 1
    [[ -e $cluster/web.pem ]] || "$certs" "$cluster" scheduler a b web >/dev/null || return 1
    member_file scheduler "$1" rxe0 && member_file a "$1" rxe0 'read_depth = 4' && member_file b "$1" rxe0 &&
        member_file web "$1" rxe1
}

# start NAME COMMAND...
start() {
    local name=$1
    shift
    "$@" >"$cluster/$name.out" 2>"$cluster/$name.log" &
    pids[$name]=$!
}

# said FILE PATTERN: waits, half a minute at most.
said() {
    local tries
    for ((tries = 0; tries < 300; tries++)); do
        grep -qs -- "$2" "$cluster/$1" && return
        sleep 0.1
    done
    echo "$1 does not say '$2':"
    cat "$cluster/$1"
    return 1
}

start_backend() { start "$1" "$baton" backend --config "$cluster/$1.toml" --name "$1" && said "$1.out" ready; }

# cluster_up TRANSPORT
cluster_up() {
    member_files "$1" && start scheduler "$baton" scheduler --config "$cluster/scheduler.toml" &&
        said scheduler.out listening && start_backend a && start_backend b
}

cluster_down() {
    local name
    for name in a b scheduler; do
        [[ -n ${pids[$name]:-} ]] || continue
        kill "${pids[$name]}" && wait "${pids[$name]}" || { echo "$name did not end well:"; cat "$cluster/$name.log"; return 1; }
    done
    pids=()
}

# start_load NAME SECONDS MODEL=RATE...: tasks a second; a backend serves 31 of m.
start_load() {
    local name=$1 seconds=$2
    shift 2
    start "$name" "$baton" load --config "$cluster/web.toml" --seconds "$seconds" "${@/#/--rate=}" --seed "${#name}" --json
}

# Tasks answered so far, as the load has told last.
answered() { sed -n 's/.* \([0-9]*\) answered, .*/\1/p' "$cluster/$1.log" | tail -n 1; }

# Waits until a load has had answers.
under_way() { said "$1.log" ' [1-9][0-9]* answered'; }

# load_ends NAME PART...: the load has ended, every task had one outcome, no answer was wrong, and the report has these parts.
load_ends() {
    local name=$1 report part
    shift
    wait "${pids[$name]}" || { echo "$name failed:"; cat "$cluster/$name.log" "$cluster/$name.out"; return 1; }
    unset "pids[$name]"
    report=$(<"$cluster/$name.out")
    echo "$report"
    for part in '"conserved":true' '"wrong_answers":0' "$@"; do
        [[ $report == *"$part"* ]] || { echo "$name: no $part"; cat "$cluster/$name.log"; return 1; }
    done
}

# only_reasons NAME REASON: tasks of this load, if any, have failed for this reason (a pattern) only.
only_reasons() {
    local reasons
    reasons=$(grep -o '"failed_by_reason":{[^}]*}' "$cluster/$1.out" | grep -o '"[a-z_]*":[0-9][0-9]*')
    echo "failed:" $reasons
    [[ -z $reasons ]] || ! grep -qvE "^\"$2\":" <<<"$reasons"
}

# ends_with_error PATTERN COMMAND...
ends_with_error() {
    local pattern=$1
    shift
    if "$@" >"$cluster/error" 2>&1; then
        echo "no error of: $*"
        return 1
    fi
    grep -q -- "$pattern" "$cluster/error" && grep -- "$pattern" "$cluster/error" | tail -n 1 && return
    echo "no '$pattern' of: $*"
    cat "$cluster/error"
    return 1
}

# Inputs and answers over RDMA between members that have shown certificates; the smaller READ depth counts, and the log names it.
secured_cluster() {
    cluster_up rdma && start_load load 4 m=20 && load_ends load '"transport":"rdma"' '"failed":0' &&
        said a.log 'transport: rdma with this frontend.* read_depth=4 ' &&
        said b.log 'transport: rdma with this frontend.* read_depth=16 ' &&
        said a.log 'messages: rdma with this peer' && said load.log 'messages: rdma with this peer'
}

# Members with certificates of another authority end with an error, and no other member notices.
wrong_certificates() {
    mkdir -p "$cluster/other" && "$certs" "$cluster/other" a web >/dev/null || return 1
    local name
    for name in a web; do sed "s#= \"$name\.\(pem\|key\)#= \"other/$name.\1#" "$cluster/$name.toml" >"$cluster/other-$name.toml"; done
    ends_with_error 'of no authority' "$baton" backend --config "$cluster/other-a.toml" --name a &&
        ends_with_error 'of no authority' "$baton" load --config "$cluster/other-web.toml" --seconds 1 &&
        said scheduler.log 'no secure connection' && start_load load 2 m=20 && load_ends load '"transport":"rdma"' '"failed":0'
}

# kill -9 of a backend: what it had is served by the other one where there is time, and fails with the reason where there
# is none. It hangs for half a second before, so that it mostly has something; then it is replaced. The other one, which has to
# serve all of it meanwhile on an emulated CPU, may be late with some of a batch's inputs (docs/rdma.md).
killed_backend() {
    local before after
    start_load load 7 m=30 urgent=15 && under_way load || return 1
    kill -STOP "${pids[a]}" && sleep 0.5
    before=$(answered load)
    { kill -9 "${pids[a]}" && wait "${pids[a]}"; } 2>/dev/null
    said scheduler.log ' lost member="backend' && start_backend a && load_ends load '"transport":"rdma"' &&
        only_reasons load '(backend_lost|fetch_timeout)' || return 1
    after=$(answered load)
    echo "answered before the kill: $before; in all: $after"
    ((after > before))
}

# kill -9 of a frontend: its tasks are gone with it; no task of another frontend is, and the backends go on.
killed_frontend() {
    start_load load 6 m=20 && start_load doomed 6 m=20 && under_way doomed && under_way load || return 1
    { kill -9 "${pids[doomed]}" && wait "${pids[doomed]}"; } 2>/dev/null
    load_ends load '"transport":"rdma"' '"failed":0' && start_load load 2 m=20 && load_ends load '"failed":0' &&
        kill -0 "${pids[a]}" "${pids[b]}"
}

# What went with the link comes back with it: the neighbour first, or the kernel would look for it for up to a second.
mend_cable() {
    ip link set veth1 up && ip neigh replace 10.77.0.1 lladdr "$(</sys/class/net/veth0/address)" dev veth1 nud permanent &&
        ip route add 10.77.0.1 dev veth1 src 10.77.0.2 table 101
}

# The cable is cut for a second under load: typed failures, then service again, over RDMA.
cut_cable() {
    local before after
    start_load load 7 m=20 && under_way load || return 1
    ip link set veth1 down
    sleep 1
    before=$(answered load)
    mend_cable || return 1
    load_ends load '"transport":"rdma"' && only_reasons load '(lease_expired|fetch_failed)' || return 1
    grep -hE 'link to a frontend failed|queue pair for messages failed|rdma with this frontend' "$cluster"/[ab].log | tail -n 8
    grep -qE 'link to a frontend failed|queue pair for messages failed' "$cluster"/[ab].log || return 1
    after=$(answered load)
    echo "answered until the cable was mended: $before; in all: $after"
    ((after > before))
}

# without_rdma PATTERN: on a host that lacks it, `rdma` is an error that names the fix; `auto` serves out of shared memory and says why.
without_rdma() {
    env -u BATON_VERBS -u BATON_VERBS_PAIR "$verbs" --nocapture rdma_on_a_host_without | tee /tmp/without
    grep -q '1 passed' /tmp/without && member_files rdma &&
        ends_with_error "transport = \"rdma\", but .*$1" "$baton" backend --config "$cluster/a.toml" --name a &&
        ends_with_error "transport = \"rdma\", but .*$1" "$baton" demo --transport rdma --seconds 1 || return 1
    local status=0
    cluster_up auto && start_load load 2 m=20 && load_ends load '"transport":"shared memory' '"failed":0' &&
        said a.log "transport: shared memory on this host, tcp, because RDMA cannot be used.*$1" || status=1
    cluster_down && return $status
}
