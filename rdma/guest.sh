#!/usr/bin/env bash
# Runs a command in a small QEMU guest that has RDMA: Debian's stock kernel with Soft-RoCE.
#
#   rdma/guest.sh [--accel tcg|kvm] [--cpus N] [--memory MiB] [--timeout S] [--console] [--] COMMAND [ARGS]
#
# No root, no RDMA card, nothing installed: QEMU, kernel and rdma-core are fetched by apt-get into a cache
# (about 600 MB) and unpacked there. The guest's file system is the host's, read only, with rdma-core laid over
# it and memory on top, so COMMAND finds what it finds here; what it writes is gone afterwards.
#
# The guest has two nodes on one cable: rxe0 (10.77.0.1, veth0) and rxe1 (10.77.0.2, veth1). What one sends to the
# other crosses the cable, so `ip link set veth1 down` cuts it and `tc qdisc add dev veth0 root netem loss 1%`
# spoils it.
#
# Its exit status is COMMAND's; 124: it took longer than --timeout; 125: the guest failed; 77: this host cannot run it.
# Emulation (tcg) works everywhere and is slow; kvm needs a /dev/kvm this user may open.
set -euo pipefail

accel=tcg cpus=1 memory=3072 timeout=600 console=0
cache=${BATON_GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-rdma-guest}

say() { printf 'guest: %s\n' "$*" >&2; }
fail() { say "$*"; exit 125; }
cannot() { say "CANNOT RUN HERE: $*"; exit 77; }

while [[ $# -gt 0 ]]; do
    case $1 in
        --accel) accel=$2; shift 2 ;;
        --cpus) cpus=$2; shift 2 ;;
        --memory) memory=$2; shift 2 ;;
        --timeout) timeout=$2; shift 2 ;;
        --console) console=1; shift ;;
        --) shift; break ;;
        -*) fail "unknown option $1" ;;
        *) break ;;
    esac
done
[[ $# -gt 0 ]] || fail "no command given; see the head of $0"

# --- what the guest is made of, once ----------------------------------------------------------------------------------

# Packages for the host (the emulator) and for the guest (RDMA user space).
# By name also what QEMU depends on and looks for beside itself: apt fetches no dependency that this host has installed.
host_packages="qemu-system-x86 qemu-system-common qemu-system-data seabios ipxe-qemu busybox-static"
guest_packages="rdma-core libibverbs1 ibverbs-providers ibverbs-utils librdmacm1 perftest kmod iproute2 util-linux"
# Loaded in this order; what they depend on comes before them.
modules="virtio_pci 9pnet_virtio 9p overlay crc32_generic crc32c_generic ib_uverbs rdma_rxe veth"

# The compressed kernel proper, so that the emulator need not run the decompressor.
unpack_kernel() {
    local at
    for at in $(LC_ALL=C grep -abo $'\xfd7zXZ' "$1" | cut -d: -f1); do
        tail -c "+$((at + 1))" "$1" | xz -dcq >"$2" 2>/dev/null || true
        [[ $(head -c 4 "$2") == $'\x7fELF' ]] && return
    done
    cp "$1" "$2" # in a form we do not know: the emulator can start it all the same
}

make_initrd() { # DIR VERSION
    local dir=$1/initrd.d module file name count=100
    mkdir -p "$dir"/{bin,proc,sys,dev,modules,host,rdma,memory,root,run}
    cp "$1"/host/bin/busybox "$dir/bin/" 2>/dev/null || cp "$1"/host/usr/bin/busybox "$dir/bin/"
    for module in $modules; do
        while read -r _ file _; do
            name=$(basename "$file" .xz)
            compgen -G "$dir/modules/*-$name" >/dev/null && continue
            count=$((count + 1))
            case $file in
                *.xz) xz -dc "$file" >"$dir/modules/$count-$name" ;;
                *) cp "$file" "$dir/modules/$count-$name" ;;
            esac
        done < <("$1/modprobe" -d "$1/tree" -S "$2" --show-depends "$module" 2>/dev/null | grep ^insmod)
    done
    cat >"$dir/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in /modules/*.ko; do insmod $m; done
share="trans=virtio,version=9p2000.L,msize=524288"
mount -t 9p -o ro,cache=loose,$share host /host && mount -t 9p -o ro,cache=loose,$share rdma /rdma || poweroff -f
mount -t tmpfs -o size=80% memory /memory; mkdir /memory/top /memory/work
mount -t overlay -o lowerdir=/rdma:/host,upperdir=/memory/top,workdir=/memory/work root /root || poweroff -f
for d in proc sys dev; do mount --move /$d /root/$d; done
mkdir -p /root/dev/pts /root/dev/shm /root/.guest
mount -t devpts devpts /root/dev/pts; mount -t tmpfs shm /root/dev/shm
mount -t tmpfs run /root/run; mount -t 9p -o rw,cache=none,$share run /root/.guest || poweroff -f
exec switch_root /root /bin/bash /.guest/start
INIT
    chmod +x "$dir/init"
    (cd "$dir" && find . | "$dir/bin/busybox" cpio -o -H newc 2>/dev/null) >"$1/initrd"
    rm -rf "$dir"
}

prepare() {
    local new=$cache.new kernel package name version
    command -v apt-get >/dev/null || cannot "it takes its parts from Debian packages, and there is no apt-get"
    [[ $(uname -m) == x86_64 ]] || cannot "the guest is an x86-64 one"
    say "fetching QEMU, a kernel and rdma-core into $cache (once, about 600 MB)"
    rm -rf "$new"
    mkdir -p "$new/debs/partial" "$new/kernel" "$new/host" "$new/rdma/usr/lib" "$new/tree/usr"
    local fetch=(-qq -o APT::Sandbox::User=root -o Dir::Cache::archives="$new/debs")
    apt-get update -qq >&2 || say "apt-get update failed; going on with the lists there are"
    kernel=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
    [[ -n $kernel ]] || cannot "apt knows no linux-image-amd64"
    # shellcheck disable=SC2086
    apt-get install -y --reinstall --no-install-recommends --download-only "${fetch[@]}" $host_packages $guest_packages >/dev/null ||
        cannot "apt-get could not fetch the packages"
    (cd "$new/debs" && apt-get download "${fetch[@]}" "$kernel") >/dev/null || cannot "apt-get could not fetch $kernel"
    for package in "$new"/debs/*.deb; do
        name=$(basename "$package")
        case $name in
            linux-image*) dpkg -x "$package" "$new/kernel" ;;
            systemd* | udev* | libudev* | libsystemd* | libpam*) ;;
            rdma-core* | *ibverbs* | *rdmacm* | perftest* | kmod* | libkmod* | iproute2* | util-linux* | libibumad* | libnl-* | \
                libpci* | pci.ids* | libmnl* | libbpf* | libelf* | libxtables* | libcap*)
                dpkg -x "$package" "$new/rdma" ;;&
            *) dpkg -x "$package" "$new/host" ;;
        esac
    done
    # The layer lies over a root whose /bin, /sbin and /lib are links into /usr.
    for name in bin sbin lib lib64; do
        [[ -d $new/rdma/$name ]] || continue
        mkdir -p "$new/rdma/usr/$name"
        cp -a "$new/rdma/$name/." "$new/rdma/usr/$name/"
        rm -rf "${new:?}/rdma/$name"
    done
    mv "$new"/kernel/lib/modules "$new/rdma/usr/lib/modules" 2>/dev/null ||
        mv "$new"/kernel/usr/lib/modules "$new/rdma/usr/lib/modules"
    version=$(ls "$new/rdma/usr/lib/modules")
    ln -s ../rdma/usr/lib "$new/tree/lib"
    for name in depmod modprobe; do ln -s "$new/rdma/usr/bin/kmod" "$new/$name"; done
    "$new/depmod" -b "$new/tree" "$version"
    make_initrd "$new" "$version"
    unpack_kernel "$new/kernel/boot/vmlinuz-$version" "$new/vmlinux"
    rm -rf "$new/debs" "$new/kernel" "$new/tree" "$new/depmod" "$new/modprobe"
    mv "$new" "$cache"
}

if [[ ! -s $cache/vmlinux ]]; then
    mkdir -p "$(dirname "$cache")"
    exec 9>"$cache.lock"
    flock 9
    [[ -s $cache/vmlinux ]] || prepare
    exec 9>&-
fi

# --- one run ----------------------------------------------------------------------------------------------------------

run=$(mktemp -d "${TMPDIR:-/tmp}/baton-guest.XXXXXX")
emulator=''
cleanup() {
    [[ -z $emulator ]] || kill -9 "$emulator" 2>/dev/null || true
    rm -rf "$run"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

: >"$run/output"
{
    printf 'cd %q || exit 125\n' "$PWD"
    printf 'export BATON_VERBS=1 BATON_VERBS_PAIR=rxe0,rxe1 HOME=/root TMPDIR=/tmp\n'
    # What COMMAND may know of this environment.
    export -p | grep -E '^declare -x (BATON_SIM_[A-Z]*|RUST_LOG|RUST_BACKTRACE|ORT_DYLIB_PATH)=' || true
    printf 'exec'
    printf ' %q' "$@"
    echo
} >"$run/command"
cat >"$run/start" <<'START'
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec </dev/null >>/.guest/output 2>&1
finish() { echo "$1" >/.guest/status.new; mv /.guest/status.new /.guest/status; sync; echo o >/proc/sysrq-trigger; sleep 60; }
need() { "$@" || { echo "guest: set-up failed: $*"; finish 125; }; }
hostname guest; ip link set lo up
need ip link add veth0 type veth peer name veth1
need ip addr add 10.77.0.1/32 dev veth0
need ip addr add 10.77.0.2/32 dev veth1
for i in veth0 veth1; do
    need ip link set $i mtu 9000 up
    for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
        echo ${setting#*=} >/proc/sys/net/ipv4/conf/$i/${setting%=*}
    done
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
# What arrives on an end of the cable is for this host; what is sent to the other end leaves by the cable.
ip rule add pref 10 iif veth0 lookup local; ip rule add pref 11 iif veth1 lookup local
ip rule add pref 20 to 10.77.0.2 lookup 102; ip rule add pref 21 to 10.77.0.1 lookup 101
ip rule add pref 30 lookup local; ip rule del pref 0
need ip route add 10.77.0.2 dev veth0 src 10.77.0.1 table 102
need ip route add 10.77.0.1 dev veth1 src 10.77.0.2 table 101
need ip neigh replace 10.77.0.2 lladdr $(cat /sys/class/net/veth1/address) dev veth0 nud permanent
need ip neigh replace 10.77.0.1 lladdr $(cat /sys/class/net/veth0/address) dev veth1 nud permanent
need rdma link add rxe0 type rxe netdev veth0
need rdma link add rxe1 type rxe netdev veth1
for device in rxe0 rxe1; do
    tries=0
    until grep -qs ACTIVE /sys/class/infiniband/$device/ports/1/state; do
        tries=$((tries + 1)); [ $tries -lt 200 ] || { echo "guest: $device does not come up"; finish 125; }
        sleep 0.05
    done
done
( . /.guest/command )
finish $?
START

case $accel in
    tcg) machine=(-accel tcg,thread=multi,tb-size=512 -cpu max,-la57) ;;
    kvm)
        [[ -w /dev/kvm ]] || cannot "--accel kvm needs a /dev/kvm this user may write"
        machine=(-accel kvm -cpu host)
        ;;
    *) fail "--accel is tcg or kvm" ;;
esac
share() { printf 'local,path=%s,mount_tag=%s,security_model=none%s' "$1" "$2" "$3"; }
LD_LIBRARY_PATH=$cache/host/usr/lib/x86_64-linux-gnu:$cache/host/lib/x86_64-linux-gnu \
    "$cache/host/usr/bin/qemu-system-x86_64" -L "$cache/host/usr/share/qemu" -L "$cache/host/usr/share/seabios" \
    "${machine[@]}" -m "$memory" -smp "$cpus" -nodefaults -no-user-config -display none -no-reboot \
    -serial "file:$run/console" -kernel "$cache/vmlinux" -initrd "$cache/initrd" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=1 tsc=reliable net.ifnames=0" \
    -virtfs "$(share / host ,readonly=on,multidevs=remap)" \
    -virtfs "$(share "$cache/rdma" rdma ,readonly=on)" -virtfs "$(share "$run" run '')" \
    </dev/null >"$run/emulator" 2>&1 &
emulator=$!
tail -q -s 0.1 -c +1 -f --pid="$emulator" "$run/output" &
reader=$!

until=$((SECONDS + timeout))
while kill -0 "$emulator" 2>/dev/null && [[ ! -e $run/status && $SECONDS -lt $until ]]; do sleep 0.1; done
[[ ! -e $run/status ]] || sleep 0.3 # the last output crosses, the guest powers off
late=0
kill -0 "$emulator" 2>/dev/null && [[ ! -e $run/status ]] && late=1
kill -9 "$emulator" 2>/dev/null || true
wait "$emulator" 2>/dev/null || true
emulator=''
wait "$reader" 2>/dev/null || true
[[ $console == 0 ]] || cat "$run/console" >&2
[[ ! -s $run/status ]] || exit "$(cat "$run/status")"
[[ $late == 0 ]] || { say "timed out after $timeout s"; exit 124; }
tail -n 30 "$run/console" "$run/emulator" >&2 || true
fail "the guest ended without a result; the end of its console stands above"
