#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# guest_fork.sh TOP BIN PYTHON PROVIDER_PATH PROVIDER [PART-OF-A-NAME]: `run.sh fork` runs it in the
# machine: two hosts with rxe, and a kernel that does not report copy-on-fork of registered memory.
# shellcheck disable=SC2034
set -u
export here=$1/test/clients bin=$2 provider=$5 more_checks=$1/test/vm/checks_nic.sh
filter=${6:-}
export top=$1 FI_PROVIDER=$5 FI_PROVIDER_PATH=$4
[ -n "$4" ] || unset FI_PROVIDER_PATH
# shellcheck source=test/lib/hosts.sh
. "$top/test/lib/hosts.sh"
export TMPDIR=/tmp
logs=/tmp/vm-logs
mkdir -p "$logs"
# shellcheck source=test/clients/harness.sh
. "$here/harness.sh"
echo # ends a line of the console
# shellcheck source=test/vm/adapters.sh
. "$top/test/vm/adapters.sh"
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd # nothing else creates it in this machine
if ! make_hosts || ! add_rxe || ! all_active 2; then echo 'FAIL: two hosts with rxe'; exit 1; fi

# fork_touch [OPTION]...
fork_touch() { ERDMA_HOSTS=A,B env FI_LOG_LEVEL=info FI_LOG_PROV="$provider" "$bin/fi_fork_touch" "$@"; }
# keeps_its_memory: checks that a parent keeps its memory, by the protection of the provider.
keeps_its_memory() {
  fork_touch || wrong "exit status $?"
  grep -oE '[0-9]+ by RDMA WRITE, 0 of these copied' "$log" | grep -qE '^[1-9]' || wrong 'memory was copied'
}
# region_keeps_its_memory: checks huge pages, of which peers reach a region by RDMA. Messages are copied, with one line,
# because userfaultfd of this kernel watches no huge pages.
region_keeps_its_memory() {
  fork_touch --huge || wrong "exit status $?"
  grep -qE ' [1-9][0-9]* by RDMA WRITE' "$log" || wrong 'nothing was moved by RDMA'
  grep -q "of a kind that userfaultfd of this kernel can't watch" "$log" || wrong 'the log does not say why messages are copied'
}
# loses_its_memory [OPTION]...: checks that without protection this test fails, by old bytes.
loses_its_memory() {
  fork_touch "$@" && wrong 'nothing was lost: this test cannot fail'
  grep -q 'fi_fork_touch.*: not true: holds(' "$log" || wrong 'it failed in another way'
}
# stale_memory PROGRAM TESTS: runs unit tests of the registration cache, at least so many.
stale_memory() {
  local ran
  (cd "$bin/.." && top_srcdir=$top top_builddir=. "test/transport/$1") || wrong "exit status $?"
  ran=$(sed -nE 's/^[0-9]+%: Checks: ([0-9]+),.*/\1/p' "$log")
  [ "${ran:-0}" -ge "$2" ] || wrong "${ran:-0} tests ran, fewer than $2"
}
export -f fork_touch keeps_its_memory region_keeps_its_memory loses_its_memory stale_memory

export FI_ERDMA_DEVICE=rxeA,rxeB
check 'fork: messages and a region of a process that forked' 120 keeps_its_memory
# This kernel has copied small pages that are registered since 5.9, and huge pages only since 5.12.
echo 64 >/proc/sys/vm/nr_hugepages
check 'fork: the same in huge pages' 120 with RDMAV_HUGEPAGES_SAFE 1 region_keeps_its_memory
check 'fork: huge pages without protection show old bytes' 120 \
  with FI_ERDMA_FORK unsafe loses_its_memory --huge
# 22 tests are those of verbs_stale_memory.h: 12 changes, 2 others, and 8 random sequences.
check 'fork: memory that changes, with userfaultfd' 120 stale_memory verbs_memory_changes_test $((22 + 8))
check 'fork: memory that changes, without userfaultfd' 120 stale_memory verbs_single_uses_test $((22 + 24))
check 'fork: an application that forks' 120 across fi_forker
check 'fork: fi_pingpong between hosts, tagged, all sizes checked' 240 between_hosts 10.9.0.1 tagged all
cp -r "$logs" /out/ 2>/dev/null
summarize 'vm fork'
