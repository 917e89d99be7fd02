#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that the lists of the Makefile.include files match the files in the tree, and are sorted.
cd "${srcdir:-.}" || exit 1
bad=0

# listed FILE VARIABLE: prints the entries of a list.
listed() {
  awk -v name="$2" '$1 == name && $2 == "=" { inside = 1; next }
    inside { last = !/\\$/; sub(/ *\\$/, ""); sub(/^[ \t]+/, ""); print; if (last) exit }' "$1"
}
# compare FILE VARIABLE...: compares the lists with the files on standard input. A program without a list has one source.
compare() {
  file=$1 tree=$(LC_ALL=C sort)
  shift
  list=
  for name in "$@"; do
    entries=$(listed "$file" "$name")
    printf '%s\n' "$entries" | LC_ALL=C sort -c 2>/dev/null || {
      bad=1
      echo "$name in $file is not sorted (LC_ALL=C)"
    }
    list=$(printf '%s\n%s' "$list" "$entries" | sed '/^$/d; s/_test$/_test.cc/' | LC_ALL=C sort)
  done
  [ "$tree" = "$list" ] && return
  bad=1
  echo "the lists of $file ($*) differ from the tree:"
  {
    printf '%s\n' "$tree" | while read -r name; do
      printf '%s\n' "$list" | grep -qxF "$name" || echo "  not listed: $name"
    done
    printf '%s\n' "$list" | while read -r name; do
      printf '%s\n' "$tree" | grep -qxF "$name" || echo "  does not exist: $name"
    done
    printf '%s\n' "$list" | uniq -d | sed 's/^/  listed twice: /'
  }
}

find prov/erdma -name '*.cc' -o -name '*.h' >"${TMPDIR:-/tmp}/lists.$$"
compare prov/erdma/Makefile.include erdma_sources <"${TMPDIR:-/tmp}/lists.$$"
find prov/fi_erdma -name '*.cc' -o -name '*.h' >"${TMPDIR:-/tmp}/lists.$$"
# shellcheck disable=SC2046  # variables
compare prov/fi_erdma/Makefile.include $(sed -n 's/^\(fi_erdma_.*sources\) = \\$/\1/p' \
  prov/fi_erdma/Makefile.include) <"${TMPDIR:-/tmp}/lists.$$"
find test -name '*_test.cc' >"${TMPDIR:-/tmp}/lists.$$"
# shellcheck disable=SC2046  # variables
compare test/Makefile.include own_test_programs $(sed -n 's/^\(test_.*_files\) = \\$/\1/p' \
  test/Makefile.include) <"${TMPDIR:-/tmp}/lists.$$"
find test/*.h test/util test/hmem test/protocol test/transport test/fabric test/fake test/fi_erdma \
  -name '*.h' 2>/dev/null >"${TMPDIR:-/tmp}/lists.$$"
compare test/Makefile.include test_headers <"${TMPDIR:-/tmp}/lists.$$"
rm -f "${TMPDIR:-/tmp}/lists.$$"
exit $bad
