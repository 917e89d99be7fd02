#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# fi_erdma doctor: see program.py. Skipped without Python.
command -v python3 >/dev/null || { echo 'python3 is not installed'; exit 77; }
exec sh "${srcdir:-.}/test/lib/no_kernel_symbols.sh" python3 -B "${srcdir:-.}/test/fi_erdma/program.py" "${srcdir:-.}" "$top_builddir" Doctor
