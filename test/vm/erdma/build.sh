#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# build.sh HEADERS ERDMA_HW_H OUT: builds the guest's module OUT/ermodel.ko for the kernel of these headers,
# with the driver's own header, which checks layout.h. Shows the output of the compiler if it fails.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) headers=$1 driver_header=$2 out=$3
mkdir -p "$out"
cp "$here"/*.c "$here"/{guest,inside,layout,model,port}.h "$here/Kbuild" "$driver_header" "$out"
make -s -C "$headers" M="$(realpath "$out")" W=1 modules >"$out/build.log" 2>&1 || {
  cat "$out/build.log" >&2
  exit 1
}
