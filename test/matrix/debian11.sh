#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# debian11.sh libfabric|version|build|jobs: in a root of Debian 11 (test/matrix/run.sh bullseye), with its g++ 10.2, glibc 2.31,
# rdma-core 33 and Open MPI 4.1.0. Its libfabric is too old, so `libfabric` builds the sources in /libfabric, which run.sh put there,
# and `version` prints which version that is.
# Three libraries of headers are Debian 12's, in /newer. The unit tests do not compile there: their simulated NIC has functions
# that rdma-core 33 does not declare (ibv_is_fork_initialized), and several files use std::atomic::wait(), which g++ 10 lacks.
set -u
top=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
cd "$top" || exit 1
build=$top/build
prefix=/opt/libfabric
export PATH=$prefix/bin:$PATH LD_LIBRARY_PATH=$prefix/lib

# Builds nothing if the last build was of the same sources. Leaves out the providers for other networks, which take minutes.
build_libfabric() {
  ! cmp /libfabric.stamp $prefix/stamp || return 0
  rm -rf $prefix
  cd /libfabric && { [ -x configure ] || ./autogen.sh; } &&
    ./configure --prefix=$prefix --disable-static --disable-verbs --disable-psm2 --disable-psm3 --disable-efa --disable-opx \
      --disable-usnic --disable-rxd --disable-mrail CFLAGS=-O1 && make -j"$(jobs)" && make install && cp /libfabric.stamp $prefix/stamp
}

compile() {
  generate && configure_in "$build" --enable-werror --enable-joined=all --disable-tests --with-libfabric=$prefix CXXFLAGS='-O1 -g1' \
    CFLAGS='-O1 -g1' FI_ERDMA_CFLAGS=-I/newer/usr/include FI_ERDMA_LIBS=' ' && make -C "$build" -j"$(jobs)" all &&
    mpicc -O2 -o "$build/mpi_quick" test/clients/mpi_quick.c
}

jobs_of_two() {
  use_build "$build"
  use_open_mpi
  fi_info -p erdma || return
  pingpong "$build/pingpong" -c -S all -I 20 || { cat "$build"/pingpong.*; return 1; }
  timeout 300 mpirun -n 2 "$build/mpi_quick" | tee "$build/mpi_quick.log"
  grep -q 'result right' "$build/mpi_quick.log" && say '2 jobs passed, 0 failed'
}

case ${1:-} in
  libfabric) build_libfabric && fi_info --version ;;
  version) fi_info --version ;;
  build) compile ;;
  jobs) jobs_of_two ;;
  *) die 'libfabric, version, build or jobs' ;;
esac
