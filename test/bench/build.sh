# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# To be sourced by the benchmarks. The caller has set $here, $clients and $bin.
# shellcheck shell=bash disable=SC2154

# compile PROGRAM SOURCE... [-lLIBRARY...]: compiles the program unless it is newer than its sources.
compile() {
  local program=$bin/$1 flags=()
  local sources=("${@:2}" "$clients/fi_common.cc" "$clients/fi_node.cc")
  if [ -x "$program" ] && [ -z "$(find "$here" "$clients" -name '*.[ch]*' -newer "$program")" ]; then
    return 0
  fi
  [ -z "${LIBFABRIC_PREFIX:-}" ] || flags=(-isystem "$LIBFABRIC_PREFIX/include" -L"$LIBFABRIC_PREFIX/lib"
    "-Wl,-rpath,$LIBFABRIC_PREFIX/lib")
  "${CXX:-g++}" -std=c++20 -O2 -g -Wall -Wextra -Wconversion -Wshadow "${flags[@]}" \
    "${sources[@]}" -o "$program" -lfabric -pthread
}

compile_pair_bench() {
  compile fi_pair_bench "$here"/{fi_pair_bench,line,machine,matching,memory,one_sided,plan,speed}.cc
}

# compile_ucx_bench: compiles it with UCX=PREFIX, or with the UCX of the system, and sets $ucx_bench.
compile_ucx_bench() {
  local flags=() folder
  ucx_bench=$bin/ucx_pair_bench
  if [ -n "${UCX:-}" ]; then
    ucx_bench+=-$(cksum <<<"$UCX" | cut -d ' ' -f 1)
    flags=(-isystem "$UCX/include")
    for folder in "$UCX"/lib "$UCX"/lib/*-linux-gnu; do
      [ ! -e "$folder/libucp.so" ] || flags+=("-L$folder" "-Wl,-rpath,$folder")
    done
  fi
  compile "$(basename "$ucx_bench")" "${flags[@]}" "$here"/{ucx_pair_bench,line,plan}.cc -lucp -lucs
}
