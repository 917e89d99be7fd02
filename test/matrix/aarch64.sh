#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# aarch64.sh build|jobs|unit [FOLDER...]|large-pages: on an x86-64 Debian 12 as root, in a system of its own (test/matrix/run.sh aarch64): compiles for
# aarch64, and runs by qemu-user the unit tests and jobs of two processes. The last line is "N passed, ...".
#
# matrix/aarch64.lacking names the suites that are left out, and the tests that fail because qemu-user lacks a feature.
# Any other failure counts. qemu keeps the memory order of its host, so test/transport/ordering_test.cc tests weak
# order.
set -u
top=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
cd "$top" || exit 1
build=$top/build
target=aarch64-linux-gnu
qemu="qemu-aarch64-static"
# Packages of this machine, and packages for aarch64.
here=("g++-$target" make autoconf automake libtool pkg-config qemu-user-static openmpi-bin libcli11-dev nlohmann-json3-dev)
there=(libfabric-dev libfabric-bin libibverbs-dev librdmacm-dev libsodium-dev libfmt-dev check zlib1g libhwloc15
  libevent-core-2.1-7 libevent-pthreads-2.1-7 libucx0)
# Open MPI's library needs a package that Debian does not install for two processors: only its files are unpacked.
unpacked=(libopenmpi3 libopenmpi-dev libpmix2 libmunge2)

fetch() {
  local debs
  export DEBIAN_FRONTEND=noninteractive
  dpkg --add-architecture arm64 && apt-get -q update &&
    apt-get -qy install --no-install-recommends "${here[@]}" "${there[@]/%/:arm64}" || return
  [ ! -e "/usr/lib/$target/libmpi.so.40" ] || return 0
  debs=$(mktemp -d) || return
  (cd "$debs" && apt-get -q download "${unpacked[@]/%/:arm64}" && for deb in *.deb; do dpkg-deb -x "$deb" / || exit; done)
}

compile() {
  local flags=(CXXFLAGS='-O1 -g1' CFLAGS='-O1 -g1') mpi=/usr/lib/$target/openmpi
  export PKG_CONFIG_LIBDIR=/usr/lib/$target/pkgconfig:/usr/share/pkgconfig
  generate && configure_in "$build" --host=$target --enable-werror --enable-joined=all "${flags[@]}" &&
    make -C "$build" -j"$(jobs)" all libsofterdma.la test/softcuda/libcuda.la &&
    make -C "$build" -j"$(jobs)" check TESTS= &&
    $target-gcc -O2 -I$mpi/include -L$mpi/lib -o "$build/mpi_quick" test/clients/mpi_quick.c \
      -Wl,--allow-shlib-undefined -lmpi
}

# failures: prints "SUITE TEST" for each unit test that failed, and "SUITE" for a suite that failed without naming one.
failures() {
  local trs suite tests
  while IFS= read -r trs; do
    ! grep -q '^:global-test-result: *\(PASS\|SKIP\)' "$trs" || continue
    suite=${trs#"$build/test/"}
    suite=${suite%_test.trs}
    tests=$(sed -nE 's/^[^:]*:-?[0-9]+:[FES]:[^:]*:([^:]*):.*/\1/p' "${trs%.trs}.log" | sort -u)
    [ -n "$tests" ] || echo "$suite"
    [ -z "$tests" ] || awk -v suite="$suite" '{ print suite, $0 }' <<<"$tests"
  done < <(find "$build/test" -name '*_test.trs')
}

# cases WHAT...: prints the number of Checks, Failures or Errors in all logs.
cases() {
  find "$build/test" -name '*_test.trs' | sed 's/trs$/log/' | xargs -r cat |
    grep -aoE "($(IFS='|'; echo "$*")): [0-9]+" | awk '{ sum += $2 } END { print sum + 0 }'
}

# known: prints the lines of aarch64.lacking that have this number of words.
known() { sed 's/ *#.*//' test/matrix/aarch64.lacking | awk -v words="$1" 'NF == words' | sort; }

# unit PAGE FOLDER...: runs the unit tests of these folders, with pages of PAGE bytes.
unit() {
  local left_out new wrong
  find "$build/test" -name '*.trs' -delete
  left_out=$(known 1 | sed 's,.*,test/&_test.cc,' | tr '\n' ' ')
  # Tests that wait for a feature that qemu lacks must end soon.
  ERDMA_RUNNER=$qemu QEMU_PAGESIZE=$1 CK_TIMEOUT_MULTIPLIER=2 make -C "$build" -k -j$((2 * $(jobs))) check \
    "TESTS=\$(filter-out $left_out,\$(filter $(printf 'test/%s/%% ' "${@:2}"),\$(unit_tests) \$(test_fi_erdma_program_tests_files)))"
  new=$(comm -23 <(failures | sort) <(known 2) | sed '/^$/d')
  [ -z "$new" ] || awk '{ print "failed:", $0 }' <<<"$new"
  wrong=$(cases Failures Errors)
  say "$(($(cases Checks) - wrong)) passed, $(grep -c . <<<"$new") failed; of what failed or was cut off, $wrong cases are known to"
  [ -z "$new" ] && [ "$(cases Checks)" -gt 0 ]
}

# jobs_of_two: runs jobs of two processes that exchange messages through shared memory.
jobs_of_two() {
  local wrapped=$build/emulated
  mkdir -p "$wrapped" && printf '#!/bin/sh\nexec %s /usr/bin/fi_pingpong "$@"\n' $qemu >"$wrapped/fi_pingpong" &&
    chmod +x "$wrapped/fi_pingpong" || return
  use_build "$build"
  use_open_mpi
  PINGPONG_LIMIT=600 PATH=$wrapped:$PATH pingpong "$build/pingpong" -S all -I 10 -c || {
    tail -n 3 "$build"/pingpong.*
    return 1
  }
  # The daemon runs natively, and its shared memory has the layout of this machine.
  PMIX_MCA_gds="hash" timeout 600 mpirun -n 2 $qemu "$build/mpi_quick" | tee "$build/mpi_quick.log"
  grep -q 'result right' "$build/mpi_quick.log" && say "2 jobs passed, 0 failed"
}

case ${1:-} in
  build) fetch && compile ;;
  unit)
    shift
    [ $# -gt 0 ] || set -- fabric fi_erdma hmem protocol transport util vm
    unit 4096 "$@"
    ;;
  large-pages) unit 16384 hmem util && unit 65536 hmem transport util ;;
  jobs) jobs_of_two ;;
  *) die 'build, jobs, unit or large-pages' ;;
esac
