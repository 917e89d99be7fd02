#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Tests the scripts that read, compare and draw the figures of make bench. Skipped without Python.
command -v python3 >/dev/null || { echo 'python3 is not installed'; exit 77; }
cd "${srcdir:-.}/test/bench" || exit 1
PYTHONDONTWRITEBYTECODE=1 exec python3 -B tests.py
