#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# old_rdma_core.sh: compiles the files that depend on the version of rdma-core as with rdma-core 33 of Debian 11.
set -eu
top=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
# shellcheck source=test/lib/common.sh
. "$top/test/lib/common.sh"
cd "$top"
generate || exit 1 # otherwise make would do it, and call configure without these options
mapfile -t files < <(grep -l HAVE_IBV_ prov/erdma/transport/verbs/*.cc)
[ ${#files[@]} -gt 0 ] || { echo 'no file asks for HAVE_IBV_'; exit 1; }
mkdir -p build/old-rdma-core
cd build/old-rdma-core
ac_cv_func_ibv_reg_dmabuf_mr=no ac_cv_func_ibv_is_fork_initialized=no \
  ../../configure --enable-werror --disable-tests CXXFLAGS=-O1 CFLAGS=-O1
rm -f "${files[@]/%.cc/.lo}"
make "${files[@]/%.cc/.lo}"
objects=()
for file in "${files[@]/%.cc/.o}"; do objects+=("$(dirname "$file")/.libs/$(basename "$file")"); done
symbols=$(nm "${objects[@]}")
! grep -E 'U ibv_(reg_dmabuf_mr|is_fork_initialized)' <<<"$symbols"
