#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/gpu/run.sh                  in a checkout: builds the programs beside the build, then the same as
# test/gpu/run.sh run              the checks and the table, on this machine's GPU
# test/gpu/run.sh pack ARCHIVE     all that `run` needs on a machine without compiler or network:
#                                  tar xzf ARCHIVE && erdma-gpu/run.sh run
# $top_builddir is the build folder (default: build). Exit status: 0; 1 a check failed; 2 slower than
# it should be; 77 there is no GPU. Nothing here needs a NIC: what a NIC would do with GPU memory is
# tested on simulated devices only (make check), which can't reach memory of a real GPU.
set -u
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
rounds=${GPU_ROUNDS:-200}

build() {
  top=$(cd "$here/../.." && pwd)
  built=$(cd "${top_builddir:-$top/build}" && pwd) || exit 1
  flags=()
  [ -z "${LIBFABRIC_PREFIX:-}" ] || flags=(-isystem "$LIBFABRIC_PREFIX/include" -L"$LIBFABRIC_PREFIX/lib")
  mkdir -p "$built/gpu" || exit 1
  for name in gpu_pair gpu_capture; do
    "${CXX:-g++}" -std=c++20 -O2 -Wall -Wextra -Wconversion -Wshadow -I"$top/prov/erdma" -I"$here" \
      "${flags[@]}" "$here/$name.cc" "$top/prov/erdma/hmem/cuda_functions.cc" -o "$built/gpu/$name" \
      -lfabric -ldl -lpthread || { echo "FAIL: $name cannot be built"; exit 1; }
  done
}

# Prints every library that the program and the provider need, except those of the C library.
pack() {
  build
  folder=$(mktemp -d) || exit 1
  trap 'rm -rf "$folder"' EXIT
  mkdir -p "$folder/erdma-gpu/lib" || exit 1
  cp -L "$built/.libs/liberdma-fi.so" "$built/gpu/gpu_pair" "$built/gpu/gpu_capture" "$here/run.sh" "$folder/erdma-gpu/" || exit 1
  [ -z "${LIBFABRIC_PREFIX:-}" ] || export LD_LIBRARY_PATH=$LIBFABRIC_PREFIX/lib:${LD_LIBRARY_PATH:-}
  ldd "$built/gpu/gpu_pair" "$built/gpu/gpu_capture" "$built/.libs/liberdma-fi.so" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
    sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' |
    xargs -I{} cp -L {} "$folder/erdma-gpu/lib/" || exit 1
  tar -C "$folder" -czf "$1" erdma-gpu && echo "$1: $(du -h "$1" | cut -f1)"
}

failed=0 slow=0 shared=no
export FI_LOG_LEVEL=${FI_LOG_LEVEL:-warn} FI_LOG_PROV=${FI_LOG_PROV:-erdma}
# as PROVIDER COMMAND...: runs the command with the provider; erdma uses only shared memory.
as() {
  local provider=$1
  shift
  if [ "$provider" = erdma ]; then
    FI_PROVIDER=erdma FI_PROVIDER_PATH=$provider_path FI_ERDMA_DEVICE=shm timeout 120 "$@"
  else
    FI_PROVIDER=$provider timeout 120 "$@"
  fi
}
check() { # NAME COMMAND...
  local name=$1 status
  shift
  "$@"
  status=$?
  case $status in
    0) echo "PASS: $name" ;;
    77) echo "SKIP: $name" ;;
    *) echo "FAIL: $name (status $status)"; failed=1 ;;
  esac
}
us() { "$@" 2>"$errors" || { tail -n 1 "$errors" >&2; echo -; }; }
# row BYTES: prints a row of the table. A ratio below 1 means that erdma is faster; "-" means that a time is missing.
row() {
  local ours staged theirs=- plain
  ours=$(us as erdma "$program" time erdma "$1" "$rounds" | tail -n 1)
  staged=$(FI_ERDMA_CUDA_IPC=off us as erdma "$program" time erdma "$1" "$rounds" | tail -n 1)
  [ "$upstream" = no ] || theirs=$(us as shm "$program" time shm "$1" "$rounds" | tail -n 1)
  plain=$(us "$program" copy "$1" "$rounds" | tail -n 1)
  awk -v n="$1" -v e="$ours" -v s="$staged" -v u="$theirs" -v p="$plain" '
    function over(a, b) { return a == "-" || b == "-" || b == 0 ? "-" : sprintf("%.2f", a / b) }
    BEGIN {
      printf "%10d %10s %10s %10s %10s %12s %12s %12s\n", n, e, s, u, p, over(e, s), over(e, u), over(p, e)
      missed = e == "-" || (u != "-" && e + 0 > u + 0) || (n == 16777216 && p != "-" && p / e < 0.9)
      exit missed ? 2 : 0
    }' || { echo "           ^ slower than it should be, or failed"; slow=1; }
}
run() {
  errors=$(mktemp) || exit 1
  trap 'rm -f "$errors"' EXIT
  kind=$("$program" kind)
  status=$?
  echo "$kind"
  case $status in
    0) ;;
    77) echo 'SKIP: there is no GPU here'; exit 77 ;;
    *) exit 1 ;;
  esac
  check 'messages of all sizes between GPU and host memory of two processes' \
    as erdma "$program" check erdma
  FI_ERDMA_CUDA_IPC=off check 'the same, staged' as erdma "$program" check erdma
  FI_ERDMA_CUDA_IPC=off FI_ERDMA_CMA=off check 'the same, staged and without CMA' \
    as erdma "$program" check erdma
  for memory in mapped unshared pool managed; do
    check "memory of another kind: $memory" as erdma "$program" check erdma "$memory"
  done
  for bytes in 8 8192 65536 1000000; do
    for first in warm cold; do
      check "$bytes bytes while a CUDA graph is captured, $first" \
        as erdma "$captures" check erdma "$bytes" "$first"
    done
  done
  FI_ERDMA_CUDA_IPC=off check 'the same, staged' as erdma "$captures" check erdma 1000000 cold
  check 'the same, captured by the thread that makes progress' \
    as erdma "$captures" check erdma 1000000 cold same
  echo 'SKIP: GPU memory through a NIC (there is none that could reach it)'
  upstream=yes
  as shm "$program" check shm >/dev/null 2>"$errors" ||
    { upstream=no; echo "no upstream shm to compare with: $(tail -n 1 "$errors")"; }
  case $kind in
    '1 of: '*) shared=yes; echo 'two processes share one GPU: the times are not judged' ;;
  esac
  printf '%10s %10s %10s %10s %10s %12s %12s %12s\n' bytes 'erdma us' 'staged us' 'shm us' 'copy us' \
    erdma/staged erdma/shm copy/erdma
  for bytes in 8 65536 1048576 16777216; do row "$bytes"; done
  [ "$failed" = 0 ] || exit 1
  [ "$slow" = 0 ] || [ "$shared" = yes ] || exit 2
}

case ${1:-} in
  pack) [ $# = 2 ] || { sed -n '3,9s/^# //p' "$0"; exit 64; }; pack "$2" ;;
  run | '')
    if [ -x "$here/gpu_pair" ]; then # unpacked
      program=$here/gpu_pair captures=$here/gpu_capture provider_path=$here
      export LD_LIBRARY_PATH=$here/lib:${LD_LIBRARY_PATH:-}
    else
      build
      program=$built/gpu/gpu_pair captures=$built/gpu/gpu_capture provider_path=$built/.libs
    fi
    run
    ;;
  *) sed -n '3,9s/^# //p' "$0"; exit 64 ;;
esac
