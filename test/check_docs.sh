#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that the documents match the tree: see check_docs.py. Skipped without Python.
checks=$(cd "$(dirname "$0")" && pwd) || exit 1
command -v python3 >/dev/null || { echo 'python3 is not installed'; exit 77; }
exec python3 "$checks/check_docs.py" "${srcdir:-.}"
