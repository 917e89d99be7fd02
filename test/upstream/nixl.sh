#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# nixl.sh SOURCES FOLDER: builds NIXL in FOLDER, with its libfabric plugin alone, and runs its own tests with erdma. SOURCES is its tree.
# Needs meson, ninja, GoogleTest, hwloc and numa (Debian: meson, libgmock-dev, libhwloc-dev, libnuma-dev), tomlplusplus, libfabric 1.18 or
# later, and an erdma that was built for it. A later call with the same FOLDER runs the tests without another build. See common.sh for
# variables, and:
#   ABSEIL    the prefix of an installed Abseil of 2023 or later, with shared libraries
#   TASKFLOW  the sources of Taskflow 3.10
#   PRELOAD   a library for the processes of the tests, such as that of the simulated NIC
#   PROVIDER  libfabric's provider, to compare another one with erdma
#
# NIXL uses only the providers of a list in its source. The script adds erdma to its copy of the sources. Some of NIXL's tests name its
# plugin for UCX; in the copy they name the one for libfabric. With any provider, an agent that forgets another one and loads its
# metadata again waits in vain for a message that the other one sent already. In the copy both agents of a test forget each other.
# agent_example, which does the same, and tests of agents without a progress thread are left out.
set -u
[ $# = 2 ] || { sed -n '3,10s/^# //p' "$0" >&2; exit 2; }
top=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/upstream/common.sh
. "$top/test/upstream/common.sh"

# add_provider: puts erdma before the others of the list.
# shellcheck disable=SC2317
add_provider() {
  local list=$folder/sources/src/utils/libfabric/libfabric_common.cpp
  sed -i 's/^ *if (provider_device_map.find("cxi") != provider_device_map.end()) {/'`
    `'    if (provider_device_map.find("erdma") != provider_device_map.end()) {\n'`
    `'        return {"erdma", provider_device_map["erdma"]};\n    }\n&/' "$list" &&
    grep -q 'return {"erdma"' "$list"
}

# use_libfabric_plugin: lets the tests use this plugin, and leaves out those that move no data between agents.
# shellcheck disable=SC2317
use_libfabric_plugin() {
  cd "$folder/sources/test" &&
    sed -i -e 's/"UCX"/"LIBFABRIC"/' -e 's/_TEST(ucx/_TEST(libfabric/' -e 's/j = start; j < end;/j = start; j <= end;/' \
      gtest/test_transfer.cpp nixl/nixl_test.cpp &&
    sed -i "/^gtest_sources = \[/,/\]/{/\[\|\]\|'main\.\|gmock_engine\|'common\.\|test_transfer/!d}" gtest/meson.build
}

# build_nixl: builds without CUDA. A "release" would have no tests. Debian's Asio has no file for pkg-config, and tomlplusplus before 3.4
# has another name for its header.
build_nixl() {
  local of_taskflow=$folder/sources/subprojects/taskflow-3.10.0
  [ -n "${ABSEIL:-}${TASKFLOW:-}" ] || die 'ABSEIL and TASKFLOW are not set'
  copy_sources
  cp -a "$TASKFLOW" "$of_taskflow" && cp "$folder/sources/subprojects/packagefiles/taskflow/meson.build" "$of_taskflow/" &&
    mkdir -p "$folder/pkgconfig" "$folder/include/toml++" &&
    printf '%s\n' 'Name: asio' 'Description: Asio' 'Version: 1' >"$folder/pkgconfig/asio.pc" &&
    printf '%s\n' '#include <toml++/toml.h>' >"$folder/include/toml++/toml.hpp" || exit 1
  step provider add_provider
  step plugin use_libfabric_plugin
  export PKG_CONFIG_PATH=$ABSEIL/lib/pkgconfig:$folder/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
  CUDA_PATH=/none CUDA_HOME=/none step configure meson setup "$folder/build" "$folder/sources" --prefix="$prefix" -Dbuildtype=plain \
    -Dcpp_args="-O1 -idirafter $folder/include" -Dwerror=false -Denable_plugins=LIBFABRIC -Dbuild_examples=false -Dwith_trace=false
}

# run_test NAME COMMAND...: counts a test, which has 300 s. Output: FOLDER/tests/NAME.log.
run_test() {
  if timeout -k 10 300 env ${PRELOAD:+"LD_PRELOAD=$PRELOAD"} "${@:2}" >"$folder/tests/$1.log" 2>&1 </dev/null; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    say "FAIL: $1"
  fi
}

# An agent in one process writes from four threads into the memory of an agent in another, which compares.
# shellcheck disable=SC2016
pair='"$0" target 127.0.0.1 15590 & sleep 3; "$0" initiator 127.0.0.1 15590 && wait $!'

prepare "$1" "$2"
needs meson meson
needs ninja ninja-build
uses_erdma
[ -e "$folder/build/build.ninja" ] || build_nixl
tests=$folder/build/test passed=0 failed=0
step build ninja -C "$folder/build" -j"$(jobs)" src/plugins/libfabric/libplugin_LIBFABRIC.so test/nixl/nixl_test test/gtest/gtest
mkdir -p "$folder/tests"
say "== the tests (output: $folder/tests)"
export FI_PROVIDER=${PROVIDER:-erdma} NIXL_PLUGIN_DIR=$folder/build/src/plugins/libfabric
export LD_LIBRARY_PATH=${ABSEIL:+$ABSEIL/lib:}${LD_LIBRARY_PATH:-}
run_test nixl_test bash -c "$pair" "$tests/nixl/nixl_test"
for name in $("$tests/gtest/gtest" --gtest_list_tests --gtest_filter='libfabric*-*Tracing*:*_no_pt*' |
  awk '/^[^ ].*\.$/ { suite = $1 } /^ / { print suite $1 }'); do
  run_test "${name//\//-}" "$tests/gtest/gtest" --gtest_filter="$name"
done
result "$passed" "$failed" 0
