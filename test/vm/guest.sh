#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# guest.sh TOP BIN PYTHON PROVIDER_PATH PROVIDER [PART-OF-A-NAME]: run.sh runs it in the machine.
# Sizes are small because emulation is slow.
# shellcheck disable=SC2034
set -u
export here=$1/test/clients bin=$2 python=$3 provider=$5 more_checks=$1/test/vm/checks.sh
filter=${6:-}
[ "$python" != none ] || python=
# shellcheck source=test/lib/common.sh
export top=$1 && . "$1/test/lib/common.sh"
use_open_mpi
export FI_PROVIDER=$5 FI_PROVIDER_PATH=$4 FI_ERDMA_DEVICE=shm
[ -n "$4" ] || unset FI_PROVIDER_PATH
# Open MPI's own shared memory permits every process to trace it as soon as it is opened, which would
# hide the provider's own setting: exclude it.
export OMPI_MCA_btl=self OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_plm=isolated TMPDIR=/tmp
logs=/tmp/vm-logs
mkdir -p "$logs"
# shellcheck source=test/clients/harness.sh
. "$here/harness.sh"
echo # ends a line of the console
scope() { echo "$1" >/proc/sys/kernel/yama/ptrace_scope; }
user=1000 # any user but root, to whom ptrace_scope does not apply

scope 0
check 'ptrace_scope 0: Open MPI, 2 ranks' 60 as $user mpi_phases 2 none datatypes
check 'ptrace_scope 0: one side in a user namespace' 60 \
  pair refused 'setpriv --reuid=1000 --regid=1000 --clear-groups' \
  'setpriv --reuid=1000 --regid=1000 --clear-groups unshare -U -c'
check 'ptrace_scope 0: one side in a pid namespace' 60 pair any '' 'unshare -p -f'
check 'ptrace_scope 0: both sides in pid namespaces of their own' 60 \
  pair refused 'unshare -p -f' 'unshare -p -f'
check 'ptrace_scope 0: one side not dumpable' 60 not_dumpable
check 'ptrace_scope 0: users 1000 and 1001' 60 other_user
check 'ptrace_scope 0: fi_erdma doctor' 100 \
  doctor_says 'ok +CMA both ways between processes, also without a common launcher$'

scope 1
check 'ptrace_scope 1: mpi4py broadcast, ranks admit each other' 100 as $user story none '' 1
check 'ptrace_scope 1: Open MPI, 2 ranks, CMA by the common ancestor' 100 \
  as $user mpi_phases 2 none datatypes storm probes self truncation communicators
check 'ptrace_scope 1: FI_ERDMA_PTRACER=any' 100 \
  with_ptracer any as $user mpi_phases 2 none datatypes
check 'ptrace_scope 1: Open MPI, 2 ranks, FI_ERDMA_PTRACER=none' 100 \
  with_ptracer none as $user mpi_phases 2 readv,writev datatypes probes truncation
check 'ptrace_scope 1: processes of different sessions' 60 pair any \
  'setpriv --reuid=1000 --regid=1000 --clear-groups setsid' \
  'setpriv --reuid=1000 --regid=1000 --clear-groups setsid'
check 'ptrace_scope 1: processes with no ancestor but init' 60 orphans
check 'ptrace_scope 1: fi_erdma doctor' 100 \
  doctor_says 'ok +CMA both ways between processes of one launcher; those of others copy: process_vm_readv: '
check 'ptrace_scope 1: fi_erdma doctor, FI_ERDMA_PTRACER=any' 100 with_ptracer any \
  doctor_says 'ok +CMA both ways between processes, also without a common launcher$'
check 'ptrace_scope 1: fi_erdma doctor, FI_ERDMA_PTRACER=none' 100 with_ptracer none \
  doctor_says 'SLOW +CMA works from a parent to its child alone, not between ranks.*\[W401\]$'

scope 2
check 'ptrace_scope 2: mpi4py broadcast' 100 as $user story readv,writev '' 1
check 'ptrace_scope 2: as root' 100 mpi_phases 2 none datatypes
check 'ptrace_scope 2: fi_erdma doctor' 100 \
  doctor_says 'SLOW +CMA between processes is refused, .*\[W401\]$'

scope 3
check 'ptrace_scope 3: Open MPI, 2 ranks' 100 as $user mpi_phases 2 readv,writev datatypes probes
check 'ptrace_scope 3: as root' 100 mpi_phases 2 readv,writev datatypes
cp -r "$logs" /out/ 2>/dev/null
summarize vm
