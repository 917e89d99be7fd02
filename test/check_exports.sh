#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that the library exports only fi_prov_ini: no weak std:: symbol that could conflict with those of
# another library in the process. Checks also that dlclose() does not unload it, although threads of the provider may
# still run: a libfabric that is part of a plugin, or has a name of its own, calls dlclose() when it is unloaded. The
# provider keeps libfabric.so.1 loaded, but not such a copy.
library=${ERDMA_LIBRARY:-${top_builddir:-.}/.libs/liberdma-fi.so}
[ -f "$library" ] || { echo "$library does not exist"; exit 1; }
exports=$(nm -D --defined-only "$library" | awk '{ print $NF }' | sort)
if [ "$exports" != fi_prov_ini ]; then
  echo "$library must export fi_prov_ini alone, but it exports:"
  echo "${exports:-nothing}"
  exit 1
fi
readelf -dW "$library" | grep -q 'FLAGS_1.*NODELETE' && exit 0
echo "$library must be linked with -z nodelete"
exit 1
