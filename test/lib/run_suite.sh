# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# run_suite.sh PROGRAM... -- FILE_test.cc: runs the suite of a file with the program that contains it. ERDMA_RUNNER, if
# set, is an emulator that starts the programs.
programs=
while [ "$1" != -- ]; do
  programs="$programs $1"
  shift
done
file=${2##*/test/}
suite=$(basename "$2" _test.cc)
for program in $programs; do
  case $program in
    "test/${file%.cc}") exec $ERDMA_RUNNER "./$program" ;;
    "test/$(dirname "$file")"/*) ! $ERDMA_RUNNER "./$program" --list | grep -qx "$suite" || exec $ERDMA_RUNNER "./$program" "$suite" ;;
  esac
done
echo "no program has the tests of $2"
exit 99
