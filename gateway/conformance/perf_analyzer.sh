#!/usr/bin/env bash
# Triton's perf_analyzer, unmodified, against a gateway: `./x oip perf_analyzer` starts a cluster and runs this.
# usage: perf_analyzer.sh URL MODEL DIR; URL serves HTTP and gRPC, DIR keeps the program and its libraries (60 MB).
# PyPI has perf_analyzer as a program for x86-64 and glibc 2.38, so it runs with the libraries of Debian 13.
set -euo pipefail
url=$1 model=$2 dir=$3
debian=https://deb.debian.org/debian
program=$dir/perf_analyzer/bin/perf_analyzer

# fetch WHEEL: unpacks a wheel of PyPI into DIR.
fetch() {
    pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$dir" \
        --platform manylinux_2_38_x86_64 --platform manylinux2014_x86_64 --python-version 312 "$1"
    python3 -m zipfile -e "$dir"/"${1%%==*}"-*.whl "$dir"
}

# Prints the paths of Debian 13's packages with the libraries that perf_analyzer links to.
packages() {
    curl -sSf "$debian/dists/trixie/main/binary-amd64/Packages.xz" | xz -dc |
        awk -v RS= '/^Package: (libc6|libstdc\+\+6|libgcc-s1|libssl3t64|zlib1g|libzstd1)\n/' |
        sed -n 's/^Filename: //p'
}

install() {
    local package
    mkdir -p "$dir/lib" "$dir/debian"
    fetch perf_analyzer==2.60.0
    fetch nvidia_cuda_runtime_cu12==12.9.79 # --shared-memory loads it, with a GPU or without
    for package in $(packages); do
        curl -sSf "$debian/$package" -o "$dir/package.deb"
        dpkg-deb -x "$dir/package.deb" "$dir/debian"
    done
    find "$dir/debian" ! -type d -name '*.so*' -exec cp -L {} "$dir/lib" \;
    cp "$dir/nvidia/cuda_runtime/lib/libcudart.so.12" "$dir/lib/libcudart.so"
    chmod +x "$program"
    touch "$dir/complete"
}

# try OPTIONS…: perf_analyzer ends at the first request that fails, and counts as many answers as the gateway.
try() {
    local said counts
    printf 'perf_analyzer'
    printf ' %s' "$@"
    if ! said=$("$dir/lib/ld-linux-x86-64.so.2" --library-path "$dir/lib" "$program" -u "$url" -m "$model" "$@" 2>&1); then
        printf ': FAILED\n%s\n' "$(tail -n 5 <<<"$said")"
        exit 1
    fi
    counts=$(sed -nE 's/^ *(Request count|Successful request count): ([0-9]+)$/\2/p' <<<"$said" | uniq)
    if [[ ! $counts =~ ^[1-9][0-9]*$ ]]; then
        printf ': FAILED, different counts of client and gateway\n%s\n' "$counts"
        exit 1
    fi
    printf ': %s answers, %s\n' "$counts" "$(grep -m 1 -oE 'p50 latency: .*' <<<"$said")"
}

[[ -e $dir/complete ]] || install
for protocol in http grpc; do
    some=(-i $protocol --request-count 500)
    try "${some[@]}" --concurrency-range 4
    try "${some[@]}" --concurrency-range 2 -b 3
    try "${some[@]}" --request-rate-range 300 --request-distribution poisson
    try "${some[@]}" --concurrency-range 4 --async --shared-memory system --output-shared-memory-size 4096
done
try "${some[@]}" --concurrency-range 4 --async --streaming
try "${some[@]}" --concurrency-range 4 --grpc-compression-algorithm gzip
try "${some[@]}" --concurrency-range 4 --request-parameter timeout:900000:int
