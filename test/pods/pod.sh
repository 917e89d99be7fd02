#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# pod.sh PROFILE BYTES COMMAND...: runs COMMAND as in a pod of its own that has the host's network: other namespaces of
# users, processes, mounts and IPC, a /dev/shm of BYTES, the capabilities that container runtimes grant (not
# CAP_SYS_PTRACE) and the seccomp profile PROFILE. What COMMAND leaves behind ends with it. Needs no privilege where the
# kernel lets users make namespaces.
set -eu
[ $# -ge 3 ] || { sed -n '3,6s/^# //p' "$0" >&2; exit 125; }
caps=+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod
export python=${python:-python3}
# shellcheck disable=SC2016
exec unshare --user --map-root-user --pid --fork --kill-child --mount-proc --ipc bash -c '
  mount -t tmpfs -o "mode=1777,size=$2" shm /dev/shm || exit 125
  profile=$1
  exec setpriv --no-new-privs --inh-caps=-all --bounding-set="-all,$3" \
    "$python" "$4/under_profile.py" "$profile" "${@:5}"' \
  _ "$1" "$2" "$caps,+audit_write,+setfcap" "$(dirname "$(readlink -f "$0")")" "${@:3}"
