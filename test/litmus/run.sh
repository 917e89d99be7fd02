#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# test/litmus/run.sh [FILE...]: runs exchanges of words and bytes between processes (transport/shm/ordering.h, region_gate.h) in
# the models of C11 and AArch64 of herd7, and compares each with what its second line says: Never, or Sometimes where an order is
# left out. HERD7 is the program with its options (herd7). The last line is "N passed, N failed". Debian has no package of herd7
# (github.com/herd/herdtools7). With Debian 13's ocaml-nox, ocaml-dune, menhir, libmenhir-ocaml-dev, libzarith-ocaml-dev and
# liblogs-ocaml-dev, or with Debian 12's for its tag 7.57, `make Version.ml && dune build --profile release herd/herd.exe` builds it, and
#   HERD7="_build/default/herd/herd.exe -set-libdir herd/libdir"
# runs it from there.
set -u
here=$(dirname "$(readlink -f "$0")")
read -ra herd <<<"${HERD7:-herd7}"
command -v "${herd[0]}" >/dev/null || { echo "SKIP: there is no herd7 (see $0)"; exit 77; }
[ $# -gt 0 ] || set -- "$here"/*.litmus
# Flags tell of data races, for example. One does not matter, and has two names: compilers write DMB ISH, whose argument is
# deprecated.
flagged() { grep '^Flag ' <<<"$output" | grep -qvE 'Shareability-argument-for-DMB|Assuming-common-inner-shareable-domain'; }
passed=0 failed=0
for file in "$@"; do
  wanted=$(sed -nE '2s/^"([A-Za-z]+):.*/\1/p' "$file")
  output=$("${herd[@]}" "$file" 2>&1)
  found=$(sed -nE 's/^Observation [^ ]+ ([A-Za-z]+) .*/\1/p' <<<"$output")
  if [ -n "$wanted" ] && [ "$wanted" = "$found" ] && ! flagged; then
    passed=$((passed + 1))
    echo "PASS: $(basename "$file" .litmus): $found"
  else
    failed=$((failed + 1))
    printf '%s\n' "$output"
    echo "FAIL: $(basename "$file" .litmus): ${found:-nothing} instead of $wanted"
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
