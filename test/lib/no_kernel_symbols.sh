# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# no_kernel_symbols.sh COMMAND...: runs the command where /proc/kallsyms is empty, if this user may mount. The verbs
# provider of libfabric reads all of it (5 MB) twice in each process that asks for a provider, which took 0.15 s.
# Not for tests that mount a /proc in a user namespace: the kernel refuses that where a file of /proc is covered.
hide='mount --bind /dev/null /proc/kallsyms'
unshare -m sh -c "$hide" 2>/dev/null || exec "$@"
exec unshare -m sh -c "$hide && exec \"\$@\"" sh "$@"
