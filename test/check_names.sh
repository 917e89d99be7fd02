#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that the tree does not name the machine it was written on: no home folder, no private package
# mirror, no address of a private network in a URL. Also checks that the provider does not return to private words
# that names of the field have replaced.
cd "${srcdir:-.}" || exit 1
trees=
for tree in prov include man docs examples test fabtests .ci configure.ac Makefile.am README.md CHANGELOG.md \
  CONTRIBUTING.md quickstart run-tests; do
  [ -e "$tree" ] && trees="$trees $tree"
done
home='(^|[^A-Za-z0-9_.$}/])/(home|Users)/[A-Za-z0-9]|(^|[^A-Za-z0-9_.$}])/workspace/[A-Za-z0-9]'
hosts='https?://[^ /]*(artifact|registry|mirror|proxy|cache)[^ /]*/'
private='https?://(10\.|192\.168\.|172\.(1[6-9]|2[0-9]|3[01])\.|[^ /]*\.(internal|corp|lan)[:/])'
# shellcheck disable=SC2086
if grep -rnIE "$home|$hosts|$private" --exclude=check_names.sh --exclude=check_selftest.sh $trees; then
  exit 1
fi
words='expose|exposure|recall|lender|borrower|[Gg]atekeeper|[Rr]oom_?[Gg]iver|[Hh]ouse_?keep\w*|work_off\w*|sends_a_lot|must_look|lent|withdraw\w*'
if [ -d prov/erdma ] && grep -rnIwE "$words" prov/erdma; then
  echo 'docs/architecture.md, Words, has the names to use'
  exit 1
fi
exit 0
