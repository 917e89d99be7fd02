# shellcheck shell=bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Functions that quickstart and run-tests share. The caller sets `top`, the root of the source tree,
# and has `set -u`.

# Packages that are needed to build, and to run fi_info, fi_pingpong and MPI jobs.
build_packages=(g++ make autoconf automake libtool pkg-config libfabric-dev libfabric-bin
  libibverbs-dev librdmacm-dev libsodium-dev libcli11-dev libfmt-dev nlohmann-json3-dev openmpi-bin libopenmpi-dev
  iproute2)

say() { printf '%s\n' "$*"; }
title() { printf '\n== %s\n' "$*"; }
die() {
  printf '\n%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# missing_packages PACKAGE...: prints the packages that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      printf '%s ' "$package"
  done
}

# install_packages PACKAGE...: installs missing packages; status 1 and a message if that fails. If
# nothing is missing, it needs neither apt nor root.
install_packages() {
  local missing sudo=() log
  [ -z "${ERDMA_SKIP_INSTALL:-}" ] || return 0
  if ! command -v dpkg-query >/dev/null; then
    say "This is not Debian. Install what corresponds to these packages of Debian 12, then start" \
      "again with ERDMA_SKIP_INSTALL=1:" >&2
    say "  $*" >&2
    return 1
  fi
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  if ! command -v apt-get >/dev/null; then
    say "There is no apt-get. Install these packages by other means:" "$missing" >&2
    return 1
  fi
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null || ! sudo -v; then
      say "Packages are missing, and this is neither root nor a user with sudo. As root:" >&2
      say "  apt-get install $missing" >&2
      return 1
    fi
    sudo=(sudo)
  fi
  say "Installing: $missing"
  log=$(mktemp) || return 1
  # shellcheck disable=SC2086
  if ! { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update &&
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -qy -o DPkg::Lock::Timeout=120 install --no-install-recommends $missing; } \
    </dev/null >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    rm -f "$log"
    say "apt-get failed (see above). These packages are needed: $missing" >&2
    return 1
  fi
  rm -f "$log"
}

# writable FOLDER: ends the script if FOLDER cannot be written, for example after a build by another user
# such as root.
writable() {
  mkdir -p "$1" 2>/dev/null && [ -w "$1" ] && return
  die "cannot write to $1. If another user built there before, remove it: rm -r $1"
}

# generate: creates ./configure from configure.ac, if it is missing or old. A tarball contains it.
generate() {
  local newer
  newer=$(cd "$top" && [ -f configure ] && find configure.ac Makefile.am \
    prov/erdma/configure.m4 ./*/Makefile.include prov/erdma/Makefile.include -newer configure)
  [ -f "$top/configure" ] && [ -z "$newer" ] && return
  [ -w "$top" ] || die "cannot write to $top, where autoreconf must put ./configure"
  (cd "$top" && autoreconf --force --install)
}

# how_compiled FOLDER: prints how its Makefile compiles; nothing if there is none.
how_compiled() { grep -E '^([A-Z_]*(FLAGS|WARNINGS|SANITIZER)|CC|CXX|DEFS) =' "$1/Makefile" 2>/dev/null; }

# configure_in FOLDER [OPTION...]: runs configure there, unless it ran with the same options. What was
# compiled in another way is removed, because make would not compile it again.
configure_in() {
  local folder=$1 before
  shift
  [ ! -f "$top/config.status" ] ||
    die "$top is configured itself; run 'make distclean' there before a build elsewhere"
  mkdir -p "$folder"
  if [ -f "$folder/Makefile" ] && [ "$folder/Makefile" -nt "$top/configure" ] &&
    [ "$(cat "$folder/options" 2>/dev/null)" = "$*" ]; then
    return
  fi
  rm -f "$folder/options"
  before=$(how_compiled "$folder")
  (cd "$folder" && "$top/configure" "$@") || return
  [ -z "$before" ] || [ "$before" = "$(how_compiled "$folder")" ] || make -s -C "$folder" clean >/dev/null || return
  printf '%s\n' "$*" >"$folder/options"
}

jobs() { getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2; }

# use_build FOLDER: makes later commands load the provider that was built there, without a warning that
# this host has no NIC.
use_build() {
  export FI_PROVIDER_PATH=$1/.libs FI_PROVIDER=erdma FI_ERDMA_DEVICE=${FI_ERDMA_DEVICE:-shm}
  unset FI_LOG_LEVEL
}

# use_open_mpi: makes Open MPI use libfabric, which Debian's defaults switch off, and permits more ranks than
# cores, and root.
use_open_mpi() {
  export OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_btl=^ofi
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  # The same settings for Open MPI 5, which starts processes with PRRTE.
  export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
  export OMPI_MCA_mpi_yield_when_idle=1
}

# use_agent PROGRAM: makes mpirun call PROGRAM instead of ssh; the second line is for Open MPI 5.
use_agent() {
  export OMPI_MCA_plm_rsh_agent=$1 OMPI_MCA_plm_rsh_no_tree_spawn=1
  export PRTE_MCA_plm_ssh_agent=$1 PRTE_MCA_plm_ssh_no_tree_spawn=1
}

# free_port: prints a TCP port on which no program listens now.
free_port() {
  local port
  for _ in $(seq 50); do
    port=$((20000 + RANDOM % 12000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
  return 1
}

# listens PORT [COMMAND...]: status 0 if a program listens on the TCP port. COMMAND... is a prefix that runs a command on
# the host in question.
listens() { "${@:2}" grep -qsE "$(printf ':%04X [0-9A-F:]+ 0A' "$1")" /proc/net/tcp /proc/net/tcp6; }
# await_listener PORT [COMMAND...]: waits for that, up to 20 s; scripts get no event.
await_listener() {
  for _ in $(seq 400); do
    ! listens "$@" || return 0
    sleep 0.05
  done
  return 1
}

# pingpong OUTPUT [OPTION...]: runs fi_pingpong between two processes, with their output in OUTPUT.server
# and OUTPUT.client. Each may take PINGPONG_LIMIT seconds.
pingpong() {
  local output=$1 port server status=0 limit=${PINGPONG_LIMIT:-120}
  shift
  port=$(free_port) || return 1
  timeout "$limit" fi_pingpong -p erdma -e rdm -B "$port" "$@" >"$output.server" 2>&1 &
  server=$!
  await_listener "$port" || status=1
  timeout "$limit" fi_pingpong -p erdma -e rdm -P "$port" "$@" 127.0.0.1 >"$output.client" 2>&1 ||
    status=1
  wait "$server" || status=1
  return $status
}
