#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# pod.sh PROFILE BYTES COMMAND...: runs COMMAND as in its own pod with the host's network: in separate user,
# process, mount and IPC namespaces, with a /dev/shm of BYTES, the capabilities that container runtimes grant (not
# CAP_SYS_PTRACE) and the seccomp profile PROFILE. Processes that COMMAND leaves behind end with it. Needs no privilege if
# the kernel lets users create namespaces.
set -eu
[ $# -ge 3 ] || { sed -n '3,6s/^# //p' "$0" >&2; exit 125; }
caps=+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod
export python=${python:-python3}
# shellcheck disable=SC2016
exec unshare --user --map-root-user --pid --fork --kill-child --mount-proc --ipc bash -c '
  # /dev contains the devices of every container, and the NICs.
  make_devices() {
    local each
    mount -t tmpfs -o mode=755 dev "$1" && mkdir "$1/shm" "$1/pts" && ln -s pts/ptmx "$1/ptmx" || return
    for each in null zero full random urandom tty; do
      touch "$1/$each" && mount --bind "/dev/$each" "$1/$each" || return
    done
    [ ! -d /dev/infiniband ] || { mkdir "$1/infiniband" && mount --rbind /dev/infiniband "$1/infiniband"; } || return
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$1/pts" &&
      mount -t tmpfs -o "mode=1777,size=$2" shm "$1/shm" && mount --move "$1" /dev
  }
  make_devices /mnt "$2" || exit 125
  exec setpriv --no-new-privs --inh-caps=-all --bounding-set="-all,$3" "$python" "$4/under_profile.py" "$1" "${@:5}"' \
  _ "$1" "$2" "$caps,+audit_write,+setfcap" "$(dirname "$(readlink -f "$0")")" "${@:3}"
