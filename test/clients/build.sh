# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the clients in $bin from $here, if they are older than their sources. If several stages of run-tests need them,
# one builds them and the others wait for it.

stale() { # stale PROGRAM SOURCE...
  local program=$1 source
  shift
  [ -x "$program" ] || return 0
  for source in "$@"; do [ "$source" -nt "$program" ] && return 0; done
  return 1
}

# LIBFABRIC_PREFIX names a libfabric outside the folders that the compiler searches.
libfabric_flags=(${LIBFABRIC_PREFIX:+-isystem "$LIBFABRIC_PREFIX/include" -L"$LIBFABRIC_PREFIX/lib"
  -Wl,-rpath,"$LIBFABRIC_PREFIX/lib"})

# link PROGRAM COMPILER...: links a program and gives it its name when it is complete.
link() {
  "${@:2}" -o "$1.new" && mv "$1.new" "$1"
}

build_stress() { # build_stress NAME
  local sources=("$here/$1.cc" "$here/fi_common.cc" "$here/fi_node.cc")
  stale "$bin/$1" "${sources[@]}" "$here/fi_common.h" || return 0
  link "$bin/$1" "${CXX:-g++}" -std=c++20 -O2 -g -Wall -Wextra -Wconversion -Wshadow \
    "${libfabric_flags[@]}" "${sources[@]}" -lfabric -pthread
}

build_clients() {
  (flock 9 && build_all) 9>"$bin/.lock"
}

build_all() {
  local name sources=("$here"/mpi_check*.c)
  if stale "$bin/refuse_cma" "$here/refuse_cma.c" "$top/prov/fi_erdma/pair/refuse_calls.h"; then
    link "$bin/refuse_cma" "${CC:-cc}" -O2 -Wall -Wextra "$here/refuse_cma.c" || return 1
  fi
  if command -v mpicc >/dev/null && stale "$bin/mpi_check" "${sources[@]}" "$here/mpi_check.h"; then
    link "$bin/mpi_check" mpicc -O2 -g -Wall -Wextra "${sources[@]}" -lpthread || return 1
  fi
  for name in fi_order fi_threads fi_auto fi_flap fi_forker fi_fork_touch fi_connects fi_close_inflight fi_many fi_unexpected fi_large \
    fi_stop_stress fi_kill_stress; do
    build_stress "$name" || return 1
  done
}

# Finds a python3 with mpi4py and numpy. The first one in PATH may not be that of the system.
python_with_mpi() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    "$candidate" -c 'import mpi4py, numpy' 2>/dev/null || continue
    command -v "$candidate"
    return
  done
  return 1
}
