#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that the provider never ends its process, and contains no unfinished work.
cd "${srcdir:-.}/prov/erdma" || exit 1
bad=0
# Member functions with these names are allowed.
if grep -rnE '(^|[^_a-zA-Z>.:])(std::|::)?(assert|abort|_?exit|quick_exit|terminate) *\(' \
  --include='*.cc' --include='*.h' . | grep -vE ':[0-9]+: *//|void abort\('; then
  bad=1
fi
if grep -rnE '\b(goto [a-z_]+;|TODO|FIXME|XXX)' --include='*.cc' --include='*.h' .; then bad=1; fi
exit $bad
