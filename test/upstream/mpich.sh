#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# mpich.sh SOURCES FOLDER [TESTS...]: builds MPICH 4.3 or later in FOLDER and runs its own tests with erdma. SOURCES is its tree with the
# submodule modules/json-c. TESTS are folders of its test/mpi (without them: those that move data). Needs mpiexec.hydra (Debian: mpich) and
# perl. A later call with the same FOLDER runs the tests without another build. See common.sh for variables, and:
#   PRELOAD          a library for the processes of the tests, such as that of the simulated NIC
#   PROVIDER         libfabric's provider, to compare another one with erdma
#   MPITEST_TIMEOUT  seconds for a test whose list says nothing (180). Ranks poll, so that a test with more ranks than idle cores is slow.
set -u
[ $# -ge 2 ] || { sed -n '3,8s/^# //p' "$0" >&2; exit 2; }
top=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/upstream/common.sh
. "$top/test/upstream/common.sh"

# use_libfabric: makes the folders that MPICH expects of libfabric. MPICH links with all libraries that libfabric.pc names for static
# linking. Debian does not install most of them with libfabric.
use_libfabric() {
  local own=$folder/libfabric
  mkdir -p "$own/include" "$own/lib/pkgconfig" && ln -sfn "$(pkg-config --variable=includedir libfabric)/rdma" "$own/include/rdma" &&
    ln -sfn "$libdir/libfabric.so" "$own/lib/libfabric.so" &&
    printf '%s\n' 'Name: libfabric' 'Description: libfabric' 'Version: 1' 'Libs: -lfabric' >"$own/lib/pkgconfig/libfabric.pc"
}

# build_mpich: leaves out what the tests of messages do not need. MPICH would move messages inside a host itself; --enable-nolocal leaves
# them to libfabric. A build that was interrupted goes on where it was.
build_mpich() {
  [ -e "$folder/sources" ] || copy_sources
  cd "$folder/sources" || exit 1
  [ -x configure ] || step autogen ./autogen.sh -without-ucx -without-ofi -without-hwloc -without-hydra -without-yaksa \
    -without-romio -without-fortran
  [ -e Makefile ] || step configure ./configure --prefix="$prefix" --with-device=ch4:ofi --with-libfabric="$folder/libfabric" \
    --enable-nolocal --with-datatype-engine=dataloop --with-pm=no --without-hwloc --without-cuda --without-hip --without-ze \
    --disable-romio --disable-fortran --disable-cxx --disable-static --enable-fast=O1 CFLAGS=-w
  step build make -j"$(jobs)"
  step install make install
}

# build_tests FOLDER...: most tests are programs of their own; others are functions of run_mpitests.
build_tests() {
  cd "$folder/sources/test/mpi" || exit 1
  [ -e Makefile ] || step configure-tests ./configure --with-mpi="$prefix" --disable-fortran --disable-cxx --disable-romio \
    --disable-dtpools --disable-perftest CFLAGS='-O1 -w'
  step build-tests make -j"$(jobs)" run_mpitests
  local tests
  for tests in "$@"; do step "build-$tests" make -j"$(jobs)" -k -C "$tests"; done
}

prepare "$1" "$2"
[ -e "$sources/modules/json-c/configure.ac" ] || die "$sources lacks the submodule modules/json-c"
needs mpiexec.hydra mpich
needs perl perl
use_libfabric || exit 1
uses_erdma
[ -x "$prefix/bin/mpicc" ] || build_mpich
tests=("${@:3}")
[ ${#tests[@]} -gt 0 ] || tests=(attr coll comm datatype group init part pt2pt rma session topo)
build_tests "${tests[@]}"
say "== the tests in ${tests[*]} (output: $folder/tests.log)"
export FI_PROVIDER=${PROVIDER:-erdma} MPITEST_PROGRAM_WRAPPER="${PRELOAD:+env LD_PRELOAD=$PRELOAD}"
cd "$folder/sources/test/mpi" &&
  ./runtests -srcdir=. -tests=testlist -testdirs="$(IFS=, && echo "${tests[*]}")" -mpiexec='mpiexec.hydra -launcher fork' \
    -tapfile="$folder/tests.tap" >"$folder/tests.log" 2>&1 </dev/null
grep '^not ok' "$folder/tests.tap"
result "$(grep '^ok' "$folder/tests.tap" | grep -vc '# SKIP')" "$(grep -c '^not ok' "$folder/tests.tap")" \
  "$(grep -c '^ok.*# SKIP' "$folder/tests.tap")"
