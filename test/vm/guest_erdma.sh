#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# guest_erdma.sh TOP BIN PYTHON PROVIDER_PATH PROVIDER [PART-OF-A-NAME]: `run.sh erdma` and, with
# long=yes, `run.sh erdma-long` run it in the machine: the kernel's own erdma.ko and Debian's liberdma on
# the model of the NIC (erdma/), first with programs of others, then with the provider.
# shellcheck disable=SC2034
set -u
export here=$1/test/clients bin=$2 provider=$5 more_checks=$1/test/vm/checks_erdma.sh
filter=${6:-}
# shellcheck source=test/lib/common.sh
export top=$1 && . "$1/test/lib/common.sh"
use_open_mpi
export FI_PROVIDER=$5 FI_PROVIDER_PATH=$4
[ -n "$4" ] || unset FI_PROVIDER_PATH
# shellcheck source=test/lib/hosts.sh
. "$top/test/lib/hosts.sh"
use_hosts
export OMPI_MCA_oob_tcp_if_include=10.10.0.0/24
export TMPDIR=/tmp
logs=/tmp/vm-logs
mkdir -p "$logs"
# shellcheck source=test/clients/harness.sh
. "$here/harness.sh"
echo # ends a line of the console
# shellcheck source=test/vm/checks_erdma.sh
. "$more_checks"

# in_long_runs COMMAND...: runs the command with long=yes only.
in_long_runs() { [ -z "${long:-}" ] || "$@"; }

of_others() {
  check 'erdma: rping' 60 between_programs 7174 rping_side
  check 'erdma: ib_send_lat' 120 perftest ib_send_lat -n 200
  # Not ib_send_lat: it treats each event as a completion, but verbs permit events without one.
  check 'erdma: ib_send_bw with events' 120 perftest ib_send_bw -n 200 -e
  check 'erdma: ib_write_bw' 120 perftest ib_write_bw -n 20 -s 65536
  check 'erdma: ib_read_bw' 120 perftest ib_read_bw -n 20 -s 65536
}

more_of_others() {
  check 'erdma: ib_send_bw' 120 perftest ib_send_bw -n 500
  check 'erdma: ib_write_bw, all sizes' 400 perftest ib_write_bw -n 20 -a
  check 'erdma: ib_read_bw, all sizes' 400 perftest ib_read_bw -n 20 -a
  check 'erdma: ib_send_bw, all sizes' 400 perftest ib_send_bw -n 20 -a
  check 'erdma: ib_read_bw with events' 120 perftest ib_read_bw -n 20 -s 4096 -e
  check 'erdma: ib_write_lat, inline' 120 perftest ib_write_lat -n 200 -I 96
  # rping waits for completions that flush=0 omits. With strict_arm=1 it would wait for ever: the first event of
  # each queue of Debian's liberdma is lost.
  check 'erdma: ib_send_lat with flush=0' 120 with_setting flush=0 perftest ib_send_lat -n 100
  local setting
  for setting in flush=1 rnr=1 rnr=2 denied=1 late=3 delay_us=200 command_us=2000 aeq=0; do
    check "erdma: rping with $setting" 90 with_setting "$setting" between_programs 7174 rping_side
  done
}

of_the_provider() {
  export FI_ERDMA_DEVICE=erdma_0,erdma_1
  check 'erdma: fi_info' 60 info_lists A erdma_0 erdma_1 10.10.0.1
  check 'erdma: fi_pingpong between hosts, tagged, all sizes checked' 300 \
    ping_pair A B 10.10.0.1 -m tagged -I 2 -S all
  check 'erdma: 60 connects, and TCP has half of the ports' 120 taken_ports
  check 'erdma: a peer that does not answer makes no call wait' 120 unanswered
  check 'erdma: connects that cross in a slow network make no call wait' 120 crossing
  check 'erdma: a peer on which nobody listens' 120 nobody_there
  check 'erdma: processes killed' 240 across fi_kill_stress --rounds 2 --limit-ms 60000
  check 'erdma: a region of 5 GiB' 120 across fi_large --no-message
  check 'erdma: Open MPI, 2 hosts with 2 ranks each' 300 mpi_hosts 4 datatypes broadcast reductions
  check 'erdma: the link goes down and comes up' 120 link_flap 'ip -n B link set b0 down' \
    'ip -n B link set b0 up'
}

collectives='broadcast scatter_gather varying all_to_all all_to_all_v reductions scans
  reduce_scatter barriers communicators'
more_of_the_provider() {
  check 'erdma: fi_pingpong between hosts, msg' 300 between_hosts 10.10.0.1 msg 300000
  check "erdma: fi_pingpong through the adapter's own loop" 300 own_loop A 10.10.0.1 300000
  check 'erdma: mixed orders and sizes' 300 across fi_order --messages 1500 --batches 4
  # A buffer of 2 GiB is registered, and each of its pages is pinned repeatedly.
  check 'erdma: a region of 2 GiB' 240 across fi_large --gib 2 --no-message
  check 'erdma: a message of 5 GiB' 900 across fi_large --limit 800
  # shellcheck disable=SC2086
  check 'erdma: Open MPI, 2 hosts with 2 ranks each, more of it' 600 mpi_hosts 4 datatypes storm probes \
    truncation $collectives
  check 'erdma: the link takes packets along as it goes' 240 link_loses_packets
  check 'erdma: processes killed for 10 minutes' 780 killed_for 600
  # Loss is not among the settings: transfers fail with it. See link_loses_packets.
  local setting
  for setting in flush=0 flush=1 rnr=1 rnr=2 denied=1 late=3 delay_us=200 command_us=2000 aeq=0 strict_arm=1 max_mr=48; do
    check "erdma: the suite with $setting" 600 with_setting "$setting" suite
  done
  check 'erdma: mixed orders and sizes with strict_arm=1, asleep' 300 with_setting strict_arm=1 few_orders --sleep
  check 'erdma: mixed orders and sizes with vectors=4, asleep' 200 with_limit vectors=4 spread_over 2 few_orders --sleep
  for setting in vectors=2 qblocks=2 log_largest_mr=25 log_most_receives=8 log_most_cqes=12 groups=24; do
    check "erdma: the suite with $setting" 600 with_limit "$setting" suite
  done
}

load_modules || { dmesg | tail -n 20; echo 'FAIL: erdma.ko on the modelled adapter'; exit 1; }
check 'erdma: two devices, ACTIVE, iWARP' 60 two_devices
check 'erdma: unloaded and loaded again' 300 reload "$([ -n "${long:-}" ] && echo 20 || echo 3)"
# The driver finds interfaces of the first namespace only, so they are moved last.
make_pair || { echo 'FAIL: two hosts with adapters'; exit 1; }
of_others
in_long_runs more_of_others
of_the_provider
in_long_runs more_of_the_provider
check 'erdma: the kernel warns of nothing' 10 no_warning
cp -r "$logs" /out/ 2>/dev/null
summarize 'vm erdma'
