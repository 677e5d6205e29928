#!/usr/bin/env bash
# Installs headers, libraries and the pkg-config file of the C client. The libraries were built before:
#   cargo build --release -p baton-capi && capi/install.sh target/release PREFIX
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ $# != 2 || ! -f $1/libbaton.so ]]; then
    echo "usage: capi/install.sh BUILD_DIR PREFIX; BUILD_DIR has libbaton.so (cargo build --release -p baton-capi)" >&2
    exit 2
fi
build=$1
mkdir -p "$2/include" "$2/lib/pkgconfig"
prefix=$(cd "$2" && pwd)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
cp "$here/include/baton.h" "$here/include/baton.hpp" "$prefix/include"
cp "$build/libbaton.so" "$prefix/lib/libbaton.so.$version"
# The name that programs ask for (`capi/build.rs`), and the one that `-lbaton` finds.
ln -sf "libbaton.so.$version" "$prefix/lib/libbaton.so.0"
ln -sf libbaton.so.0 "$prefix/lib/libbaton.so"
[[ ! -f $build/libbaton.a ]] || cp "$build/libbaton.a" "$prefix/lib"
sed -e "s#@PREFIX@#$prefix#" -e "s#@VERSION@#$version#" "$here/baton.pc.in" >"$prefix/lib/pkgconfig/baton.pc"
