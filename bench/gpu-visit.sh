#!/usr/bin/env bash
# What a host with an NVIDIA GPU shows of Baton, unattended: bench/gpu-visit.sh [--brief | --fake] [FOLDER]
#
# Needs no root, and changes no clock, no power limit and no mode. Each step writes a file of FOLDER (target/gpu-visit); report.txt
# has what each came to. A step that fails does not keep the others from running. --fake rehearses it all on the fake
# driver and the CPU, on any host: seconds instead of minutes, and times that mean nothing. --brief measures everything for less
# long: the whole visit in less than three minutes.
# BATON names another binary than target/release/baton, which is built if it is not there.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fake= batches=20000 model_batches=3000 seconds=20 short=10 per_size=1 devices=(cpu cuda:0) threads=(1 2 4 6 8 12)
case ${1:-} in
    --fake) fake=yes batches=40 model_batches= seconds=2 short=1 per_size=0.1 devices=(cpu) threads=(1) && shift ;;
    --brief) batches=5000 model_batches=1000 seconds=6 short=4 per_size=0.2 threads=(1 4 12) && shift ;;
    -*) printf 'unknown option %s; give --brief or --fake\n' "$1" >&2 && exit 2 ;;
esac
out=${1:-target/gpu-visit}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
if [[ -z ${BATON:-} ]]; then
    cargo build --release --locked -p baton -p baton-cuda-fake >&2 || exit 1
    BATON=$PWD/target/release/baton
fi
failed=0
: >"$out/report.txt"

say() { printf '%s\n' "$*" | tee -a "$out/report.txt"; }

# step NAME COMMAND…: its output goes to NAME.json or NAME.txt, its log to NAME.log.
step() {
    local name=$1 start=$SECONDS status=0 why
    shift
    "$@" >"$out/$name" 2>"$out/$name.log" || status=$?
    if [[ $status != 0 ]]; then
        failed=$((failed + 1))
        why=$(tail -n 1 "$out/$name.log")
        # The last line of goals' log is about the run that was last, whatever it came to.
        ! grep -qs '"met":false' "$out/$name" || why='a goal is missed'
        say "$name: FAILED ($status; see $name and $name.log) $why"
        return 1
    fi
    say "$name: done in $((SECONDS - start)) s"
}

# number FILE EXPRESSION: a value of a JSON file, in Python.
number() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$out/$1" "$2"; }

# goals FILE: a line of the report for each goal.
goals() {
    while IFS= read -r line; do say "  $line"; done < <(python3 - "$out/$1" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    d = json.loads(line)
    print("%-6s %s (%d rows, %.4g ms): %.5g, %s %g" % ("met" if d["met"] else "MISSED", d["goal"], d["rows"], d["latency_ms"], d["value"], d["is"].replace("_", " "), d["bound"]))
PY
    )
}

if [[ $fake ]]; then
    folder=$(dirname "$BATON")
    for BATON_CUDA_DRIVER in "$folder"/{,deps/}libbaton_cuda_fake.so; do [[ ! -f $BATON_CUDA_DRIVER ]] || break; done
    export BATON_CUDA_DRIVER
    say "FAKE GPU: a rehearsal, whose times mean nothing"
fi
say "$(date -u +%FT%TZ) $("$BATON" --version) on $(uname -srm)"

# --- the host -------------------------------------------------------------------------------------------------------------
cat >"$out/cluster.toml" <<'TOML'
[scheduler]
listen = "127.0.0.1:7790"

[network]
transport = "tcp"

[[model]]
name = "staircase"
engine = "cuda"
alpha_ms = 0.1
beta_ms = 0.4
batch_max = 16
slo_ms = 50

[[backend]]
name = "gpu"
idle = "spin"
TOML
step doctor.json "$BATON" doctor --config "$out/cluster.toml" --json
if command -v nvidia-smi >/dev/null; then
    step nvidia-smi.txt nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,temperature.gpu,power.draw,persistence_mode,compute_mode --format=csv
fi

# --- engine = "cuda" ------------------------------------------------------------------------------------------------------
# Each goal beside a bare loop of the same kernel: rates, gaps, copies, tails, memory, CPU time, prediction. About two minutes.
step goals.json "$BATON" bench gpu ${fake:+--fake} --batches $batches --json
goals goals.json
# The whole path over loopback, client, scheduler and backend: at full load, and one row at a time on an idle device.
# Spinning threads, six of them, need a core each, and the kernel's work on their packets needs some too.
idle=park
(($(nproc) < 8)) || idle=spin
path() { "$BATON" bench path --idle $idle --engine cuda --slots 1 --bytes 150528 --latency-ms "$2" --batch "$3" --outstanding "$4" --seconds $short --json; }
step path-full.json path full 2 16 64 &&
    say "  full load over loopback, idle = $idle: $(number path-full.json '"%.1f batches/s of %.1f" % (d["tasks_per_s"] / d["mean_batch"], 1e3 / (2 + 0.001 * d["mean_batch"]))')"
step path-one.json path one 0.5 1 1 &&
    say "  one row over loopback, idle = $idle: $(number path-one.json '"p50 %.3f ms, of which %.3f ms are the execution; at most 0.15 ms beside it" % (d["p50_ms"], 0.501)')"
# How near ℓ(b) every size is.
step staircase.json "$BATON" profile --config "$out/cluster.toml" --model staircase --runs 500 --seconds-per-size $per_size \
    --out "$out/staircase.profile.toml" --json &&
    say "  staircase: $(number staircase.json '"largest |p50 - l(b)|/l(b) %.4f" % max(
        abs(s["p50_ms"] / (0.1 * s["batch"] + 0.4) - 1) for s in d["profile"]["measured"])')"
# A whole cluster, each answer checked.
step demo.json "$BATON" demo --engine cuda ${fake:+--fake-gpu} --seconds $seconds --json
[[ ! -s $out/demo.json ]] || say "  demo: $(number demo.json '"completed %d, wrong answers %d, bad rate %.4f, conserved %s" % (
    d["completed"], d["wrong_answers"], d["bad_rate"], d["conserved"])')"

# --- ONNX models ----------------------------------------------------------------------------------------------------------
# serve FILE RATE: a cluster with this cluster file, whose model gets that many tasks a second.
serve() {
    local scheduler backend status=0
    "$BATON" scheduler --config "$out/$1" >"$out/scheduler.txt" 2>"$out/scheduler.log" &
    scheduler=$!
    "$BATON" backend --config "$out/$1" --name gpu >"$out/backend.txt" 2>"$out/backend.log" &
    backend=$!
    # Loading comes first: a load that began before would lose tasks that are none of the backend's.
    for _ in $(seq 600); do
        ! grep -q ready "$out/backend.txt" && kill -0 "$backend" 2>/dev/null || break
        sleep 0.1
    done
    if ! grep -q ready "$out/backend.txt"; then
        kill "$scheduler"
        tail -n 1 "$out/backend.log" >&2
        return 1
    fi
    "$BATON" load --config "$out/$1" --rate "$2" --seconds "$seconds" --json || status=$?
    kill "$backend" "$scheduler"
    wait "$backend" "$scheduler"
    return $status
}

# cluster NAME FILE DEVICE: NAME.toml, with one model.
cluster() {
    cat >"$out/$1.toml" <<TOML
[scheduler]
listen = "127.0.0.1:7791"
[network]
transport = "tcp"
[[model]]
name = "$1"
file = "$2"
slo_ms = 50
device = "$3"
[[backend]]
name = "gpu"
idle = "$idle"
TOML
}

provider=--gpu
[[ -z $fake ]] || provider=
if ORT_DYLIB_PATH=$(ORT_DYLIB_PATH= ./x onnxruntime $provider 2>"$out/onnxruntime.log"); then
    export ORT_DYLIB_PATH
    for device in "${devices[@]}"; do
        step "digits-$device.json" "$BATON" profile examples/digits/digits.onnx --batch-max 64 --device "$device" \
            --seconds-per-size $per_size --out "$out/digits-$device.profile.toml" --json &&
            say "  digits on $device: $(number "digits-$device.json" '"l(1) %.4f ms, l(64) %.4f ms" % (
                d["profile"]["latency_ms"][0], d["profile"]["latency_ms"][-1])')"
    done
    cluster digits "$PWD/examples/digits/digits.onnx" "$device"
    step digits-served.json serve digits.toml digits=2000 && say "  digits on $device, served: $(number digits-served.json '"completed %d, wrong answers %d, accuracy %s" % (
        d["completed"], d["wrong_answers"], d["accuracy"])')"
    if [[ $model_batches ]]; then
        # A network of a real one's size: its CUDA graphs beside a bare loop of the same graphs, and served.
        python3 bench/resnet50.py "$out/resnet50.onnx" &&
            step resnet50-goals.json "$BATON" bench gpu --model "$out/resnet50.onnx" --batches $model_batches --json
        goals resnet50-goals.json
        cluster resnet50 "$out/resnet50.onnx" "$device"
        step resnet50-served.json serve resnet50.toml resnet50=1000 && say "  resnet50 on $device, 1,000 tasks a second: $(number resnet50-served.json \
            '"bad rate %.4f, p50 %.2f ms, p99 %.2f ms" % (d["bad_rate"], d["p50_ms"], d["p99_ms"])')"
        rm -f "$out/resnet50.onnx"
    fi
else
    failed=$((failed + 1))
    say "onnx: FAILED: $(tail -n 1 "$out/onnxruntime.log")"
fi

# --- many cores -----------------------------------------------------------------------------------------------------------
cores=$(nproc)
for count in "${threads[@]}"; do
    # A core each for the ModelThreads, the RankThread and the generator.
    ((count + 2 <= cores)) || { [[ $fake && $count == 1 ]] || continue; }
    step "model-threads-$count.json" "$BATON" bench sched --model-threads "$count" --models 96 --seconds $((short > 5 ? 5 : short)) --json &&
        say "  $count ModelThread(s): $(number "model-threads-$count.json" '"%.2f M requests/s, %.0f ns each" % (d["requests_per_s"] / 1e6, d["ns_per_request"])')"
done

say "$failed step(s) failed; everything is in $out"
((failed == 0))
