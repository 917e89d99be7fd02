#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that mkdocs turns the documents into a web site without a warning, and that it finds broken links. Skipped
# without mkdocs.
cd "${srcdir:-.}" || exit 1
/usr/bin/python3 -c 'import mkdocs' 2>/dev/null || { echo 'mkdocs is not installed'; exit 77; }
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
/usr/bin/python3 docs/build-site "$folder/site" || exit 1
grep -q 'class="toctree-l1' "$folder/site/index.html" || { echo 'the first page has no menu'; exit 1; }

# Creates a tree with one page and a menu entry for it.
mkdir "$folder/docs" || exit 1
cp docs/build-site "$folder/docs" || exit 1
printf 'site_name: one\ntheme: readthedocs\n' >"$folder/docs/mkdocs.yml"
# refused TEXT: checks that a page with this text is refused.
refused() {
  printf '# A head\n\n%s\n' "$1" >"$folder/README.md"
  if /usr/bin/python3 "$folder/docs/build-site" "$folder/one" >"$folder/log" 2>&1; then
    echo "docs/build-site takes $1"
    exit 1
  fi
}
refused '[a page](docs/none.md)'
refused '[a head](#none)'
printf '# A head\n\n[itself](#a-head)\n' >"$folder/README.md"
/usr/bin/python3 "$folder/docs/build-site" "$folder/one" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
