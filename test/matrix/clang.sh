#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/matrix/clang.sh: checks that clang finds nothing to warn of in the provider and its tests. Prints "PASS: name", "FAIL: name" and
# "SKIP: name (why)". The output of each command is in $top_builddir/matrix. Exit status 1 if something failed.
# shellcheck disable=SC2317
set -u
top=${top_srcdir:-$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)}
top=$(cd "$top" && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
build=${top_builddir:-$top/build}
logs=$build/matrix
front_end=$top/test/lib/front_end.sh
failed=0

# try NAME COMMAND...: prints one line with the result.
try() {
  local log
  log=$logs/$(tr -c 'a-z0-9\n' _ <<<"${1,,}").log
  if "${@:2}" >"$log" 2>&1 </dev/null; then say "PASS: $1"; return; fi
  grep -E 'error|warning' "$log" | head -n 20
  tail -n 5 "$log"
  say "FAIL: $1 (all of its output is in $log)"
  failed=1
}

# with_clang: compiles without code, which takes most of the time.
with_clang() {
  generate && configure_in "$build/clang" --enable-werror --enable-joined=all CC=clang CXX=clang++ CXXFLAGS=-O0 CFLAGS=-O0 || return
  make -C "$build/clang" -k -j"$(jobs)" LIBTOOL="$front_end" CC="$front_end clang" CXX="$front_end clang++" \
    all libsofterdma.la test/softcuda/libcuda.la check TESTS=
}

# a_warning_is_found: checks that with_clang can fail.
a_warning_is_found() {
  echo 'int one() { int unused; return 1; }' >"$logs/warned.cc"
  if "$front_end" clang++ -Wall -Werror -c "$logs/warned.cc" -o "$logs/warned.o"; then return 1; fi
  "$front_end" clang++ -Wall -Werror -Wno-unused-variable -c "$logs/warned.cc" -o "$logs/warned.o"
}

mkdir -p "$logs" || exit 1
if ! command -v clang++ >/dev/null; then
  say 'SKIP: clang (there is no clang++)'
  exit 0
fi
try 'clang: a warning is found' a_warning_is_found
try 'clang: no warning' with_clang
exit $failed
