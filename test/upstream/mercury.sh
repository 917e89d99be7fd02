#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# mercury.sh SOURCES FOLDER: builds Mercury in FOLDER and runs its unit tests, a server and a client each, with erdma. SOURCES is its
# tree with the submodule Testing/driver/kwsys. Needs cmake. See common.sh for variables.
#
# Mercury uses only the providers of a table in its source. The script adds a line for erdma to its copy of the sources.
set -u
[ $# = 2 ] || { sed -n '3,4s/^# //p' "$0" >&2; exit 2; }
top=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/upstream/common.sh
. "$top/test/upstream/common.sh"

# add_provider FILE: adds erdma to the table, and to each list of providers that need nothing special. The highest bit of erdma's
# endpoint protocol is set, as libfabric wants it for a protocol of one provider alone; Mercury takes such numbers for negative ones
# and refuses them.
# shellcheck disable=SC2317
add_provider() {
  sed -i -e 's/^ *X(NA_OFI_PROV_MAX,/    X(NA_OFI_PROV_ERDMA, "erdma", "", FI_SOCKADDR_IN, FI_SOCKADDR_IN, FI_PROGRESS_MANUAL, \\\n'`
    `'      (int) ((1u << 31) | 0xE), FI_MULTI_RECV, NA_OFI_WAIT_FD) \\\n&/' \
    -e 's/^\( *\)case NA_OFI_PROV_SOCKETS:/&\n\1case NA_OFI_PROV_ERDMA:/' \
    -e 's/\(na_ofi_prov_ep_proto\[prov_type\]\) <= FI_PROTO_UNSPEC/\1 == FI_PROTO_UNSPEC/' "$1" &&
    grep -q 'X(NA_OFI_PROV_ERDMA' "$1" && grep -q 'case NA_OFI_PROV_ERDMA' "$1" && grep -q '== FI_PROTO_UNSPEC' "$1"
}

prepare "$1" "$2"
[ -e "$sources/Testing/driver/kwsys/CMakeLists.txt" ] || die "$sources lacks the submodule Testing/driver/kwsys"
needs cmake cmake
uses_erdma
copy_sources
step provider add_provider "$folder/sources/src/na/na_ofi.c"
step configure cmake -S "$folder/sources" -B "$folder/build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBUILD_SHARED_LIBS=ON \
  -DBUILD_TESTING=ON -DBUILD_TESTING_PERF=OFF -DNA_USE_SM=OFF -DNA_USE_OFI=ON -DNA_OFI_TESTING_PROTOCOL=erdma \
  ${PKG_CONFIG_PATH:+-DCMAKE_PREFIX_PATH="$libfabric"}
step build make -C "$folder/build" -j"$(jobs)"
say "== the unit tests (output: $folder/tests.log)"
# A test fails if the word "error" is in its output. Without huge pages, mercury_util logs an error and uses other pages.
export HG_LOG_LEVEL=warning HG_LOG_SUBSYS=hg,na,hg_test
(cd "$folder/build" && ctest -V --timeout 300) >"$folder/tests.log" 2>&1 </dev/null
ctest_result "$folder/tests.log"
