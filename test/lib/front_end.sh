#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# front_end.sh [OPTION OF LIBTOOL...] COMPILER ARGUMENT...: takes the place of COMPILER, or of libtool, in make, and only looks for errors
# and warnings, in a fraction of the time. What would be compiled or linked becomes an empty file.
while [ "${1#--}" != "$1" ]; do shift; done
compiler=$1 output='' compiles='' before=''
shift
for argument; do
  [ "$before" != -o ] || output=$argument
  [ "$argument" != -c ] || compiles=yes
  before=$argument
done
[ -z "$compiles" ] || "$compiler" "$@" -fsyntax-only || exit
[ -z "$output" ] || : >"$output"
