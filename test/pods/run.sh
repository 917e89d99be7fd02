#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/pods/run.sh [PART-OF-A-NAME]: runs real applications over shared memory in containers, with all ranks of a job in
# one pod, and with each rank in its own, under the default seccomp profile, with a small /dev/shm. ERDMA_SECCOMP_PROFILE
# names a profile (Docker's default.json); otherwise it is that of Debian's package for Podman, which the script downloads
# without installing it. Prints "PASS: name", "FAIL: name" and "SKIP: name (why)"; the output of each check is in
# $top_builddir/pods/logs. Exit status 1 if one failed.
set -u
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
build=${top_builddir:-$top/build}
build=$(cd "$build" && pwd)
[ -n "${FI_PROVIDER:-}" ] || use_build "$build"
use_open_mpi
export top provider=${FI_PROVIDER} here=$top/test/clients bin=$build/clients more_checks=$top/test/pods/checks.sh
export fi_erdma=$build/prov/fi_erdma/fi_erdma profiles=$build/pods
logs=$profiles/logs
filter=${1:-}
mkdir -p "$bin/logs" "$logs" || exit 1
# shellcheck source=test/clients/build.sh
. "$here/build.sh"
# shellcheck source=test/clients/harness.sh
. "$here/harness.sh"
# shellcheck source=test/pods/profile.sh
. "$top/test/pods/profile.sh"
unable() { say "SKIP: pods ($*)"; exit 0; }

python=$(python_with_seccomp) || unable 'no python3 has the module seccomp'
export python
default_profile >"$logs/profile.log" 2>&1 || unable 'apt-get could not download a seccomp profile'
bash "$top/test/pods/pod.sh" "$profiles/default.json" 1m true >"$logs/pod.log" 2>&1 ||
  unable "no pod can be made here: $(tail -n 1 "$logs/pod.log")"
build_clients >"$logs/build.log" 2>&1 || { tail -n 20 "$logs/build.log"; echo 'FAIL: build'; exit 1; }
# A profile from before Linux 4.8, which made these calls harmless. Some profiles are still like that.
"$python" - "$profiles/default.json" >"$profiles/refusing.json" <<'P' || exit 1
import json, sys
profile = json.load(open(sys.argv[1], encoding="utf-8"))
for rule in profile["syscalls"]:
    rule["names"] = [name for name in rule["names"] if name not in ("process_vm_readv", "process_vm_writev", "ptrace")]
json.dump(profile, sys.stdout)
P

check 'the profile refuses userfaultfd' 60 call_is refused userfaultfd default
check 'a profile of allow_calls.py permits it' 90 allowed_calls_work
check 'a profile of allow_calls.py for Kubernetes permits it, and no more' 90 allowed_calls_work_in_kubernetes
check 'one pod: fi_pingpong, all sizes checked' 60 one_pod default 64m ping_checked
check 'one pod: CMA is used' 60 one_pod_uses_cma
check 'one pod, 4 ranks: nothing to see' 120 one_pod default 64m ranks 4 0 ''
check 'one pod, 4 ranks, a /dev/shm of 1 MiB that is full' 120 one_pod default 1m without_shm ranks 4 0 ''
check 'one pod, 4 ranks, CMA refused by the profile: one line each' 120 \
  one_pod refusing 64m ranks 4 4 'CMA is refused by a seccomp filter'
check 'a pod each: fi_pingpong, all sizes checked' 60 pods_each
check 'a pod each, 4 ranks: one line each' 120 ranks_apart default 4 4 "CMA is refused as the peer is in a pid namespace that can't be seen"
summarize pods
