# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Functions of the scripts in this folder. Each builds a client of libfabric from SOURCES, in FOLDER, and runs the client's own tests
# with erdma. The caller sets `top`.
#
# Variables: LIBFABRIC is the prefix of an installed libfabric (/usr). FI_PROVIDER_PATH is the folder of liberdma-fi.so (that of
# build/.libs, if it exists; otherwise libfabric's own). FI_ERDMA_DEVICE is shm, one host without a NIC, unless it is set. For the simulated
# NIC, a script that knows PRELOAD needs FI_ERDMA_DEVICE=erdma_0, FI_ERDMA_SHM=off and PRELOAD=build/.libs/libsofterdma.so, as a whole path.

# prepare SOURCES FOLDER: sets sources, folder, prefix (where the client is installed), libfabric, libdir and the environment.
prepare() {
  sources=$(readlink -f "$1") && mkdir -p "$2" && folder=$(readlink -f "$2") || exit 2
  export prefix=$folder/installed
  libfabric=${LIBFABRIC:-/usr}
  [ "$libfabric" = /usr ] || export PKG_CONFIG_PATH=$libfabric/lib/pkgconfig
  libdir=$(pkg-config --variable=libdir libfabric) || die "there is no libfabric in $libfabric"
  [ ! -e "$top/build/.libs/liberdma-fi.so" ] || FI_PROVIDER_PATH=${FI_PROVIDER_PATH:-$top/build/.libs}
  export FI_PROVIDER=erdma FI_ERDMA_DEVICE=${FI_ERDMA_DEVICE:-shm} ${FI_PROVIDER_PATH:+FI_PROVIDER_PATH}
  unset FI_LOG_LEVEL
  [ "$libfabric" = /usr ] || export LD_LIBRARY_PATH=$libdir PATH=$libfabric/bin:$PATH
}

# needs PROGRAM PACKAGE: ends the script if the program is not there.
needs() { command -v "$1" >/dev/null || die "there is no $1 (Debian: $2)"; }

# step NAME COMMAND...: runs the command with its output in FOLDER/NAME.log, and ends the script if it fails.
step() {
  say "== $1 (output: $folder/$1.log)"
  "${@:2}" >"$folder/$1.log" 2>&1 </dev/null && return
  tail -n 30 "$folder/$1.log"
  die "$1 failed"
}

# copy_sources: copies them to FOLDER/sources, as builds write beside the sources.
copy_sources() { rm -rf "$folder/sources" && cp -a "$sources" "$folder/sources"; }

# uses_erdma: says which provider answers; ends the script if it is not erdma.
uses_erdma() {
  env ${PRELOAD:+"LD_PRELOAD=$PRELOAD"} fi_info -p erdma -f erdma >"$folder/fi_info.log" 2>&1 ||
    { cat "$folder/fi_info.log"; die 'fi_info does not find erdma'; }
  say "$(fi_info --version | sed -n 's/^libfabric: /libfabric /p'), erdma in ${FI_PROVIDER_PATH:-the folder of libfabric}," \
    "FI_ERDMA_DEVICE=$FI_ERDMA_DEVICE"
}

# result PASSED FAILED SKIPPED: prints the last line, and ends the script.
result() {
  say "$1 passed, $2 failed, $3 skipped"
  [ "$2" = 0 ] && [ "$1" -gt 0 ]
  exit
}

# automake_result LOG: the same from the summaries of `make check`, and names what failed.
automake_result() {
  local kind counts=()
  for kind in PASS FAIL SKIP; do
    counts+=("$(sed -nE "s/^# $kind: +//p" "$1" | awk '{ sum += $1 } END { print sum + 0 }')")
  done
  grep -E '^(FAIL|ERROR): ' "$1"
  result "${counts[0]}" "$((counts[1] + $(sed -nE 's/^# ERROR: +//p' "$1" | awk '{ sum += $1 } END { print sum + 0 }')))" "${counts[2]}"
}

# ctest_result LOG: the same from the output of ctest.
ctest_result() {
  local failed passed
  grep -aE '^ *[0-9]+/[0-9]+ Test +#' "$1" >"$1.tests" || die "no test ran; see $1"
  passed=$(grep -c ' Passed ' "$1.tests")
  failed=$(grep -cvE ' Passed |\*\*\*(Skipped|Not Run)' "$1.tests")
  grep -v ' Passed ' "$1.tests"
  result "$passed" "$failed" "$(grep -cE '\*\*\*(Skipped|Not Run)' "$1.tests")"
}
