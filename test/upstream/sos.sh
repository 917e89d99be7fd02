#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# sos.sh SOURCES FOLDER: builds Sandia OpenSHMEM in FOLDER and runs its unit tests, two processes each, with erdma. SOURCES is its
# tree with the submodule modules/tests-sos. Needs mpiexec.hydra (Debian: mpich). See common.sh for variables.
set -u
[ $# = 2 ] || { sed -n '3,4s/^# //p' "$0" >&2; exit 2; }
top=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
# shellcheck source=test/upstream/common.sh
. "$top/test/upstream/common.sh"

prepare "$1" "$2"
[ -e "$sources/modules/tests-sos/test/unit/Makefile.am" ] || die "$sources lacks the submodule modules/tests-sos"
needs mpiexec.hydra mpich
uses_erdma
copy_sources
cd "$folder/sources" || exit 1
[ -x configure ] || step autogen ./autogen.sh
# erdma registers memory by virtual address alone.
step configure ./configure --prefix="$prefix" --with-ofi="$libfabric" --with-ofi-libdir="$libdir" \
  --enable-ofi-mr=basic --enable-pmi-simple
step build make -j"$(jobs)"
step install make install
say "== the unit tests (output: $folder/tests.log)"
make -C modules/tests-sos/test/unit -k check NPROCS=2 TEST_RUNNER="timeout 300 mpiexec.hydra -launcher fork -n 2" \
  >"$folder/tests.log" 2>&1 </dev/null
automake_result "$folder/tests.log"
