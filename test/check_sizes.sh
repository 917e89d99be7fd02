#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Files of more than 600 lines fail; those of more than 300 are listed.
cd "${srcdir:-.}" || exit 1
find prov test fabtests -name '*.cc' -o -name '*.h' -o -name '*.c' | sort | {
  bad=0
  while read -r file; do
    lines=$(wc -l <"$file")
    if [ "$lines" -gt 600 ]; then
      echo "$file: $lines lines, the limit is 600"
      bad=1
    elif [ "$lines" -gt 300 ]; then
      echo "$file: $lines lines (more than 300)"
    fi
  done
  exit $bad
}
