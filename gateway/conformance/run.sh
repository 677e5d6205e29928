#!/usr/bin/env bash
# A cluster of processes, a gateway, and an unmodified client that calls it, Triton's or its perf_analyzer: `./x oip`.
# usage: run.sh BATON TARGET_DIR [perf_analyzer]; serves the digits model where ORT_DYLIB_PATH is set, else an emulated one only.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
baton=$1
venv=$2/oip-venv

if [[ ! -x $venv/bin/python ]]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'tritonclient[http,grpc]==2.73.0'
fi

dir=$(mktemp -d)
pids=()
end() {
    ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
    wait
    rm -rf "$dir"
}
trap end EXIT

# start PREFIX ARGS…: starts `baton ARGS` and waits for its line that begins with PREFIX; `said` is what follows.
start() {
    local prefix=$1 name=$2-${#pids[@]} round
    shift
    "$baton" "$@" >"$dir/$name.out" 2>"$dir/$name.log" &
    pids+=($!)
    for ((round = 0; round < 300; round++)); do
        if grep -qs "^$prefix" "$dir/$name.out"; then
            said=$(sed -n "s/^$prefix *//p" "$dir/$name.out" | head -n 1)
            return
        fi
        kill -0 "${pids[-1]}" 2>/dev/null || break
        sleep 0.1
    done
    cat "$dir/$name.log" >&2
    echo "oip: baton $1 did not say '$prefix'" >&2
    exit 1
}

models=(emulated)
cat >"$dir/cluster.toml" <<'TOML'
[network]
ctrl_us = 20000
response_us = 20000
jitter_us = 10000
[gateway]
shared_memory_mib = 16
[[model]]
name = "emulated"
alpha_ms = 1
beta_ms = 5
slo_ms = 1000
input_bytes = 4096
subcluster = "gpu"
[[backend]]
name = "gpu"
subcluster = "gpu"
TOML
if [[ -n ${ORT_DYLIB_PATH:-} ]]; then
    models+=(digits)
    cp "$here/../../examples/digits/digits.onnx" "$dir"
    cat >>"$dir/cluster.toml" <<'TOML'
[[model]]
name = "digits"
file = "digits.onnx"
slo_ms = 1000
batch_max = 32
subcluster = "cpu"
[[gateway.image]]
model = "digits"
[[backend]]
name = "cpu"
subcluster = "cpu"
TOML
fi

start listening scheduler --config "$dir/cluster.toml" --listen 127.0.0.1:0
scheduler=$said
start ready backend --config "$dir/cluster.toml" --scheduler "$scheduler" --name gpu
[[ -z ${ORT_DYLIB_PATH:-} ]] || start ready backend --config "$dir/cluster.toml" --scheduler "$scheduler" --name cpu
start http gateway --config "$dir/cluster.toml" --scheduler "$scheduler" --http 127.0.0.1:0
url=$said
if [[ ${3:-} == perf_analyzer ]]; then
    "$here/perf_analyzer.sh" "$url" "${models[-1]}" "$2/perf-analyzer"
    exit
fi
start http gateway --config "$dir/cluster.toml" --scheduler "$scheduler" --http 127.0.0.1:0 --model-control
status=0
"$venv/bin/python" "$here/descriptors.py" || status=1
for model in "${models[@]}"; do
    echo "oip: model $model"
    "$venv/bin/python" "$here/tritonclient.py" "$url" "$model" "$said" || status=1
done
exit $status
