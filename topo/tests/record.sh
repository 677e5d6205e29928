#!/usr/bin/env bash
# Prints what `baton doctor` and `baton topo show` read of this host, as a tree for tests/fixtures (tests/recorded reads it).
#
#   topo/tests/record.sh >topo/tests/fixtures/NAME.tree
set -uo pipefail
cd /

# Without a process for each file: a device has thousands, most of them empty GIDs.
file() {
    local path=$1 text=()
    [[ -r $path && -f $path ]] && mapfile -t text <"$path" 2>/dev/null || return 0
    case ${#text[@]} in
        0) ;;
        1) [[ ${text[0]} == 0000:0000:0000:0000:0000:0000:0000:0000 ]] || printf '%s = %s\n' "$path" "${text[0]}" ;;
        *) printf '%s:\n' "$path" && printf '| %s\n' "${text[@]}" ;;
    esac
}
# What of a process's files the doctor reads, and no more.
lines() {
    printf '%s:\n' "$1"
    grep -E "$2" "$1" | sed 's/^/| /'
}
files() { local path; for path in "$@"; do file "$path"; done; }
link() { [[ ! -L $1 ]] || printf '%s -> %s\n' "$1" "$(readlink "$1")"; }

shopt -s nullglob
echo "# process and kernel"
lines proc/self/limits '^Max (locked memory|open files)'
lines proc/self/status '^(CapEff|Cpus_allowed_list):'
lines proc/stat '^cpu '
files proc/self/uid_map proc/sys/net/ipv4/tcp_{rmem,wmem,congestion_control,rto_min_us} proc/sys/net/ipv4/ip_local_port_range
echo "# cores"
files sys/devices/system/cpu/{online,isolated} sys/devices/system/clocksource/clocksource0/{current,available}_clocksource \
    sys/kernel/mm/transparent_hugepage/enabled sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list \
    sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor sys/devices/system/node/node[0-9]*/cpulist \
    sys/devices/system/node/node[0-9]*/hugepages/*/{nr,free}_hugepages
for node in sys/devices/system/node/node[0-9]*; do lines "$node/meminfo" 'Mem(Total|Free):'; done
echo "# pci"
for device in sys/bus/pci/devices/*; do
    link "$device"
    files "$(realpath --relative-to=/ "$device")"/{class,vendor,numa_node,{current,max}_link_{width,speed}}
done
echo "# interfaces"
for device in sys/class/net/*; do
    link "$device"
    file "$(realpath --relative-to=/ "$device")/mtu"
done
for device in sys/class/infiniband/*; do
    echo "# $(basename "$device")"
    link "$device"
    home=$(realpath --relative-to=/ "$device")
    link "$home/device"
    link "$home/parent"
    files "$home"/{parent,node_type} "$home"/ports/*/{state,phys_state,link_layer,rate} "$home"/ports/*/{gids,gid_attrs/types,gid_attrs/ndevs}/* \
        "$home"/ports/*/{counters,hw_counters}/*
done
file sys/class/infiniband_verbs/abi_version
for device in sys/class/infiniband_verbs/uverbs*; do
    link "$device"
    file "$(realpath --relative-to=/ "$device")/ibdev"
    echo "dev/infiniband/$(basename "$device") = (a character device)"
done
