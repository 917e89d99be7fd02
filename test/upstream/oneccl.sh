#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# oneccl.sh SOURCES FOLDER: builds oneCCL (without SYCL) in FOLDER and runs its functional tests, two processes each, with erdma. The tests
# exchange addresses with MPI: needs cmake, and MPICH (Debian: mpich, libmpich-dev), which pkg-config must find. See common.sh for variables.
set -u
[ $# = 2 ] || { sed -n '3,4s/^# //p' "$0" >&2; exit 2; }
top=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/upstream/common.sh
. "$top/test/upstream/common.sh"

# The tests link with a library named libmpi, which in Debian is that of Open MPI.
use_mpich() {
  local lib
  lib=$(pkg-config --variable=libdir mpich)/libmpich.so
  [ -e "$lib" ] && mkdir -p "$folder/mpi/lib" && ln -sfn "$lib" "$folder/mpi/lib/libmpi.so" &&
    ln -sfn "$(pkg-config --variable=includedir mpich)" "$folder/mpi/include"
}

# The folders that oneCCL expects of libfabric.
use_libfabric() {
  mkdir -p "$folder/libfabric" && ln -sfn "$(pkg-config --variable=includedir libfabric)" "$folder/libfabric/include" &&
    ln -sfn "$libdir" "$folder/libfabric/lib"
}

# run_tests: prints "PASS: name (cases)" or "FAIL: name" for each program of tests.
run_tests() {
  local program name log
  for program in "$folder"/build/tests/functional/*_test; do
    name=$(basename "$program")
    log=$folder/$name.log
    if timeout 600 mpiexec.hydra -launcher fork -n 2 "$program" >"$log" 2>&1 </dev/null &&
      grep -aq '\[  PASSED  \]' "$log" && ! grep -aq '\[  FAILED  \]' "$log"; then
      say "PASS: $name ($(grep -aoE '\[  PASSED  \] [0-9]+ tests?' "$log" | sed -n '1s/.*\] //p'))"
    else
      say "FAIL: $name (output: $log)"
    fi
  done
}

prepare "$1" "$2"
needs cmake cmake
needs mpiexec.hydra mpich
use_mpich || die 'there is no libmpich (Debian: libmpich-dev)'
use_libfabric || exit 1
uses_erdma
copy_sources
# oneCCL makes warnings errors. Its reductions with AVX-512 FP16 do not compile with g++ 12, so that they are left out.
step configure cmake -S "$folder/sources" -B "$folder/build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBUILD_EXAMPLES=OFF \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='-O1 -Wno-error -UCCL_FP16_AVX512FP16_COMPILER' \
  -DCMAKE_C_FLAGS_RELWITHDEBINFO='-O1 -Wno-error' -DMPI_DIR="$folder/mpi" -DLIBFABRIC_DIR="$folder/libfabric"
step build make -C "$folder/build" -j"$(jobs)"
# The library, and the part of all combinations that oneCCL's own script runs.
export LD_LIBRARY_PATH=$folder/build/src${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# oneCCL would take the libfabric of Intel MPI.
export CCL_OFI_LIBRARY_PATH=$libdir/libfabric.so CCL_ATL_TRANSPORT=ofi CCL_CACHE_FLUSH=1 CCL_TEST_DATA_TYPE=1 \
  CCL_TEST_SIZE_TYPE=1 CCL_TEST_BUF_COUNT_TYPE=1 \
  CCL_TEST_PLACE_TYPE=1 CCL_TEST_START_ORDER_TYPE=0 CCL_TEST_COMPLETE_ORDER_TYPE=0 CCL_TEST_COMPLETE_TYPE=0 \
  CCL_TEST_CACHE_TYPE=1 CCL_TEST_SYNC_TYPE=0 CCL_TEST_REDUCTION_TYPE=0 CCL_TEST_DYNAMIC_POINTER=1
say '== the functional tests'
run_tests | tee "$folder/tests.log"
result "$(grep -c ^PASS "$folder/tests.log")" "$(grep -c ^FAIL "$folder/tests.log")" 0
