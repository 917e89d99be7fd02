#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# guest_nic.sh TOP BIN PYTHON PROVIDER_PATH PROVIDER [PART-OF-A-NAME]: `run.sh nic` runs it in the
# machine: two hosts with RDMA devices (adapters.sh). Sizes are small because emulation is slow.
# shellcheck disable=SC2034
set -u
export here=$1/test/clients bin=$2 provider=$5 more_checks=$1/test/vm/checks_nic.sh profiles=${2%/*}/vm/pods python=$3
filter=${6:-}
# shellcheck source=test/lib/common.sh
export top=$1 && . "$1/test/lib/common.sh"
use_open_mpi
export FI_PROVIDER=$5 FI_PROVIDER_PATH=$4
[ -n "$4" ] || unset FI_PROVIDER_PATH
# shellcheck source=test/lib/hosts.sh
. "$top/test/lib/hosts.sh"
use_hosts
export TMPDIR=/tmp
logs=/tmp/vm-logs
mkdir -p "$logs"
# shellcheck source=test/clients/harness.sh
. "$here/harness.sh"
echo # ends a line of the console

# shellcheck source=test/vm/adapters.sh
. "$top/test/vm/adapters.sh"
make_adapters || { echo 'FAIL: two hosts with RDMA adapters'; exit 1; }

collectives='broadcast scatter_gather varying all_to_all all_to_all_v reductions scans
  reduce_scatter barriers communicators'
# checks_of KIND ADDRESS_OF_A NETDEV_OF_C COUNTER SIZES LINK_DOWN LINK_UP: runs the checks with siw, which has no counters, or rxe.
checks_of() {
  local kind=$1 address=$2 netdev=$3 counter=$4 sizes=$5 down=$6 up=$7
  export FI_ERDMA_DEVICE=${kind}A,${kind}B
  check "$kind: fi_info" 60 info_lists A "${kind}A" "${kind}B" "$address"
  check "$kind: two adapters, one of them down" 60 one_is_down "${kind}A" "${kind}C" "$netdev"
  check "$kind: fi_pingpong between hosts, tagged, all sizes checked" 120 \
    between_hosts "$address" tagged all
  check "$kind: fi_pingpong between hosts, msg" 120 between_hosts "$address" msg 300000
  check "$kind: fi_pingpong through the adapter's own loop" 120 own_loop A "$address" 300000
  check "$kind: users 1000 and 1001 of one host" 120 two_users "$address"
  check "$kind: a pod on each host, userfaultfd refused: one line each" 120 \
    two_pods "$kind" "$address" default 2 'zero copy is limited: .*userfaultfd'
  check "$kind: a pod on each host, userfaultfd permitted: nothing to see" 120 two_pods "$kind" "$address" more 0 ''
  # shellcheck disable=SC2086
  check "$kind: Open MPI, 2 hosts with 2 ranks each" 300 mpi_hosts 4 datatypes storm probes \
    truncation $collectives
  check "$kind: mixed orders and sizes" 120 across fi_order --messages 1500 --batches 4
  check "$kind: a receiver stopped for 2 s" 120 stopped_receiver 2
  check "$kind: 12 processes killed" 180 across fi_kill_stress --rounds 12 --limit-ms 30000
  check "$kind: fi_erdma doctor" 120 a_doctor_alone A "${kind}A"
  check "$kind: fi_erdma bench, messages that the pages count" 200 benched "$address" "$sizes"
  check "$kind: fi_erdma stat, packets that the kernel counts" 60 kernel_counts "${kind}A" "$counter"
  check "$kind: fi_erdma hang names a rank on another host" 120 hung "${kind}A" "${kind}B"
  check "$kind: the link goes down and comes up" 120 link_flap "$down" "$up"
}
checks_of siw 10.8.0.1 a1 '' 8,1K 'ip -n B link set b0 down' 'ip -n B link set b0 up'
checks_of rxe 10.9.0.1 r2 sent_pkts 8,1M 'ip link set r1 down; ip -n B link set r1 down' \
  'ip link set r1 up; ip -n B link set r1 up'
# Not with siw: if both sides move MiBs at once, it once stalled for a minute on a busy host.
check 'rxe: fi_erdma doctor --peer, between two machines' 400 two_machines 10.9.0.1
check 'rxe: fi_erdma doctor --peer, between containers of one host' 400 two_containers 10.9.0.1
check 'rxe: fi_erdma doctor --peer, between two MTUs' 400 two_mtus 10.9.0.1
cp -r "$logs" /out/ 2>/dev/null
summarize 'vm nic'
