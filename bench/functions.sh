#!/usr/bin/env bash
# Replays counts per minute against real processes, and in the simulator: bench/functions.sh [FOLDER]
#
# 200 emulated models, ResNet50 of Clockwork's Table 1, on four slots of two backends (GPUS for each: 2) that hold ten each. The functions are
# generated (`baton sim functions`). FILE names a file of the public Azure Functions trace instead, MINUTES the part that is
# replayed (600:60), SPEED how many times as fast (10), RATE the generated file's tasks per second (20). Each step writes a file of
# FOLDER (target/functions). BATON names another binary than target/release/baton, which is built if it is not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-target/functions} minutes=${MINUTES:-600:60} speed=${SPEED:-10} gpus=${GPUS:-2}
mkdir -p "$out" && out=$(cd "$out" && pwd)
if [[ -z ${BATON:-} ]]; then
    cargo build --release --locked -p baton >&2
    BATON=$PWD/target/release/baton
fi
seconds=$(awk "BEGIN { print ${minutes#*:} * 60 / $speed }")

cluster() {
    printf '[scheduler]\nlisten = "127.0.0.1:0"\nidle = "park"\nmetrics = "127.0.0.1:0"\n[frontend]\nslots_per_model = 256\n'
    # Six processes share what may be two cores: plan with timers that run late.
    printf '[network]\njitter_us = 2000\nresponse_us = 10000\n'
    printf '[[backend]]\nname = "%s"\ngpus = %s\nweights_cache_mib = 1120\nidle = "park"\n' a "$gpus" b "$gpus"
    for model in $(seq 1 200); do
        printf '[[model]]\nname = "model-%03d"\nlatency_ms = [2.61, 3.78, 4.695, 5.61]\nslo_ms = 100\n' "$model"
        printf 'input_bytes = 1024\nweights_mib = 97.6\nload_ms = 8.33\n'
    done
}

# behind FILE TEXT: what stands behind it in a process' output, once it does.
behind() {
    until grep -q "$2" "$1" 2>/dev/null; do sleep 0.1; done
    sed -n "s|.*$2||p" "$1" | head -n 1
}

cluster >"$out/cluster.toml"
file=${FILE:-$out/functions.csv}
if [[ -z ${FILE:-} ]]; then
    "$BATON" sim functions --functions 2000 --rate "${RATE:-20}" --out "$file"
fi
replay=(--replay "$file" --minutes "$minutes" --speed "$speed")
"$BATON" sim run --cluster "$out/cluster.toml" "${replay[@]}" --seconds "$seconds" --warmup 0 \
    --policy baton --json >"$out/simulated.json"

processes=()
trap 'kill "${processes[@]}" 2>/dev/null; wait' EXIT
"$BATON" scheduler --config "$out/cluster.toml" >"$out/scheduler.log" 2>&1 &
processes+=($!)
scheduler=$(behind "$out/scheduler.log" 'listening ')
for name in a b; do
    "$BATON" backend --config "$out/cluster.toml" --scheduler "$scheduler" --name "$name" >"$out/$name.log" 2>&1 &
    processes+=($!)
    behind "$out/$name.log" 'ready' >"$out/$name.ready"
done
"$BATON" load --config "$out/cluster.toml" --scheduler "$scheduler" "${replay[@]}" --json >"$out/load.json"
curl -sS "http://$(behind "$out/scheduler.log" 'metrics at http://')" >"$out/metrics.txt"

python3 - "$out" <<'END'
import json, os, re, sys

def read(name):
    return json.load(open(f"{sys.argv[1]}/{name}.json"))

def line(of, report, satisfied):
    print(f"{of}: satisfied {satisfied:.4f}; cold {report['cold_rps']:.2f}/s, of these in time "
          f"{report['cold_satisfied']:.4f}; LOADs {report['loads_per_s']:.2f}/s")


load, simulated = read("load"), read("simulated")
print(f"load average {os.getloadavg()[1]:.1f}; {load['submitted']} tasks in {load['seconds']:.0f} s; stolen CPU time {load['steal_fraction']:.4f}")
line("processes", load, 1 - load["bad_rate"])
line("simulated", simulated, simulated["satisfied"])
metrics = open(f"{sys.argv[1]}/metrics.txt").read()
for side in ("early", "late"):
    series = rf'baton_scheduler_load_end_error_seconds_bucket{{le="([^"]+)",side="{side}"}} (\d+)'
    print(f"LOADs that ended {side}:", ", ".join(f"≤ {le} s {count}" for le, count in re.findall(series, metrics)))
END
