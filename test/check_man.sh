#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that each FI_ERDMA_* variable of fabric/env.cc is in the manual page, and the other way round, and that the
# README names only existing ones.
cd "${srcdir:-.}" || exit 1
bad=0
names() { grep -ohE 'FI_ERDMA_[A-Z0-9_]*[A-Z0-9]' "$@" | sort -u; }
code=$(names prov/erdma/fabric/env.cc)
man=$(names man/fi_erdma.7.md)
[ -n "$code" ] || { echo 'no FI_ERDMA_ variable in prov/erdma/fabric/env.cc'; exit 1; }
# has LIST NAME
has() { printf '%s\n' "$1" | grep -qx "$2"; }
for name in $code; do
  has "$man" "$name" || { echo "$name is in fabric/env.cc, but not in man/fi_erdma.7.md"; bad=1; }
done
for name in $man; do
  has "$code" "$name" || { echo "$name is in man/fi_erdma.7.md, but not in fabric/env.cc"; bad=1; }
done
for name in $([ ! -f README.md ] || names README.md); do
  has "$code" "$name" || { echo "$name is in README.md, but not in fabric/env.cc"; bad=1; }
done
exit $bad
