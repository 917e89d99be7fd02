#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The program fi_erdma, but for doctor: see program.py. Skipped without Python.
command -v python3 >/dev/null || { echo 'python3 is not installed'; exit 77; }
exec python3 -B "${srcdir:-.}/test/fi_erdma/program.py" "${srcdir:-.}" "$top_builddir" Program Pair
