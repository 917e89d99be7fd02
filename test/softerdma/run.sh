#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/softerdma/run.sh [PART-OF-A-NAME]: runs the programs of rdma-core on the simulated NIC, as two hosts,
# and checks their output. Prints "PASS: name", "FAIL: name", "SKIP: name"; the output of each is in
# $top_builddir/softerdma/logs.
set -u
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
build=${top_builddir:-$top/build}
# shellcheck disable=SC2034
here=$top/test/softerdma logs=$build/softerdma/logs filter=${1:-}
mkdir -p "$logs" || exit 1
export top here adapter=$build/.libs/libsofterdma.so refuse_cma=$build/test/clients/refuse_cma
[ -f "$adapter" ] || { echo "FAIL: $adapter does not exist (make libsofterdma.la)"; exit 1; }
# shellcheck source=test/clients/harness.sh
. "$top/test/clients/harness.sh"

for personality in standard compat; do
  check "ibv_devices, $personality" 10 devices "$personality"
  check "ibv_devinfo, $personality" 10 devinfo "$personality"
done
check 'ibv_devinfo, a port that is down' 10 devinfo_down
check 'ibv_rc_pingpong, compat' 60 rc_pingpong
check 'rping, standard' 60 rping_verified
for program in ib_send_lat ib_send_bw ib_write_bw ib_read_bw; do
  check "$program -R, standard" 60 perftest standard "$program" -R
  check "$program, compat" 60 perftest compat "$program"
done
check 'ib_write_bw, compat, process_vm_* refused' 60 perftest_refused
check 'state of killed processes is swept' 60 swept
check 'fi_pingpong -p verbs, standard' 90 verbs_pingpong

summarize softerdma
