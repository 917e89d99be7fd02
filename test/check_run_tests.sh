#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that run-tests counts its tests, fails a stage without tests, and leaves no process behind. make and the
# compilers are replaced by scripts that only record their arguments.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0"
set -u
source=$(cd "${srcdir:-.}" && pwd) || exit 1
tree=$(mktemp -d "${TMPDIR:-/tmp}/erdma-run-tests.XXXXXX") || exit 1
trap 'rm -rf "$tree"' EXIT
bad=0
unset CK_RUN_SUITE CK_RUN_CASE CK_INCLUDE_TAGS CK_EXCLUDE_TAGS GIT_DIR GIT_WORK_TREE

# expect WHAT STATUS TEXT COMMAND...: checks that the command ends with the status, and that its output matches the
# regular expression TEXT, in which ^ is the beginning of a line.
expect() {
  local what=$1 wanted=$2 text=$3 output status=0
  shift 3
  output=$("$@" 2>&1 </dev/null) || status=$?
  [ "$status" = "$wanted" ] && grep -qE -- "$text" <<<"$output" && return
  printf '%s: status %s instead of %s, or without "%s":\n' "$what" "$status" "$wanted" "$text"
  sed 's/^/  | /' <<<"$output"
  bad=1
}

# --- stages: a script with functions, stages and lanes
logs=$tree/build/logs
mkdir -p "$logs" "$tree/build/test"
stages() {
  bash -c 'set -u; top=$1 build=$2 logs=$2/logs selected="  "; . "$top/test/lib/results.sh"; eval "$3"' \
    _ "$source" "$tree/build" "$1"
}
# passed PROGRAM [CHECKS]: writes the files that make check leaves for a program that passed.
leave='passed() {
  mkdir -p "$build/test"
  echo ":global-test-result: PASS" >"$build/test/$1.trs"
  echo "${2:+100%: Checks: $2, Failures: 0, Errors: 0}" >"$build/test/$1.log"
}'
expect 'a stage of one test' 0 '^1 passed, 0 failed, 0 skipped' stages 'stage a 1 one true; finish'
expect 'a failed stage' 1 '^0 passed, 1 failed, 0 skipped' stages 'stage a 1 one false; finish'
expect 'lines' 1 '^2 passed, 1 failed, 1 skipped' stages \
  'run() { printf "%s\n" "PASS: a" "ok 1" "not ok 2" "SKIP: c"; }; stage a 1 lines run; finish'
expect 'lines of which there are none' 1 '^ *FAIL: nothing ran' stages 'stage a 1 lines true; finish'
expect 'programs that pass' 0 '^4 passed, 0 failed' stages \
  "$leave; run() { passed a_test 3; passed check_b; }; stage check 1 trs run; finish"
rm "$tree"/build/test/*
expect 'no program ran' 1 '^ *FAIL: no unit test ran' stages \
  "$leave; run() { passed check_b; }; stage check 1 trs run; finish"
expect 'nothing ran' 1 '^ *FAIL: ' stages 'stage check 1 trs true; finish'
expect 'nothing but what is left out' 1 '^ *FAIL: no unit test ran' stages \
  'run() { echo ":global-test-result: SKIP" >"$build/test/a_test.trs"; echo why >"$build/test/a_test.log"; }; stage check 1 trs run; finish'
rm "$tree"/build/test/*
expect 'a program passed without a check' 1 '^2 passed, 1 failed' stages \
  "$leave; run() { passed a_test 0; passed b_test 2; }; stage check 1 trs run; finish"
rm "$tree"/build/test/*
expect 'the trace of a test of Python' 1 'OSError: gone' stages "$leave"'; run() {
  passed a_test 1
  echo ":global-test-result: FAIL" >"$build/test/b.trs"
  printf "%s\n" "ERROR: test_b (__main__.B.test_b)" -- "OSError: gone" "" -- "Ran 9 tests" "" "FAILED (errors=1)" "" "FAIL b" \
    >"$build/test/b.log"
}; stage check 1 trs run; finish'
rm "$tree"/build/test/*
expect 'lanes' 0 '^2 passed, 0 failed, 0 skipped' stages \
  'a() { stage a 1 one true; }; b() { stage b 1 one true; }; beside a b; finish'
echo 'lane_passed=5 lane_failed=0 lane_skipped=0' >"$logs/.dies"
# shellcheck disable=SC2016
dying='dies() { stage a 1 one true; kill -9 $BASHPID; }; lives() { stage b 1 one true; }'
expect 'a lane that dies' 1 '^1 passed, 1 failed' stages "$dying; beside dies lives; finish"
expect 'a lane that dies is named' 1 '^FAIL: dies ended with status 137' stages \
  "$dying; beside dies lives; finish"

# interrupted SCRIPT: checks that SIGTERM during a stage ends all processes, which share a pipe.
interrupted() {
  local runner leader='' status=0
  rm -f "$tree/held" "$tree/begun"
  mkfifo "$tree/held" "$tree/begun"
  stages "slow() { echo \$\$ >&8; sleep 50; }
    apart() { timeout 50 bash -c 'echo \$1 >&8; sleep 50' _ \$\$; }; $1" >"$tree/output" 7>"$tree/held" 8<>"$tree/begun" 2>&1 &
  runner=$!
  exec 6<"$tree/held" 8<>"$tree/begun"
  read -r -t 40 leader <&8
  kill "$leader"
  wait "$runner" || status=$?
  timeout 40 cat <&6 || echo 'processes are left'
  exec 6<&- 8<&-
  return $status
}
for command in slow apart; do
  expect "SIGTERM in a stage: $command" 1 '^$' interrupted "stage a 1 one $command; finish"
  expect "SIGTERM beside: $command" 1 '^$' interrupted \
    "a() { stage a 1 one $command; }; b() { stage b 1 one true; }; beside a b; finish"
done

# --- what another configure leaves
mkdir -p "$tree/conf/build"
printf '%s\n' '#!/bin/sh' 'printf "CXXFLAGS = %s\nclean:\n\trm -f old.o\n" "$*" >Makefile' >"$tree/conf/configure"
chmod +x "$tree/conf/configure"
# left OPTION...: compiles old.o, configures, and says whether old.o is still there.
left() {
  touch "$tree/conf/build/old.o"
  bash -c 'set -u; top=$1; . "$2/test/lib/common.sh"; configure_in "$top/build" "${@:3}"' _ "$tree/conf" "$source" "$@" || return
  [ -f "$tree/conf/build/old.o" ] && echo kept || echo removed
}
expect 'objects in a folder without a Makefile' 0 '^kept$' left -O1
expect 'objects compiled in the same way' 0 '^kept$' left -O1
expect 'objects compiled in another way' 0 '^removed$' left -O2
touch -d '1 hour' "$tree/conf/configure"
expect 'objects older than configure' 0 '^kept$' left -O2
rm "$tree/conf/build/options"
expect 'objects of a folder that was configured by hand' 0 '^kept$' left -O2
echo 'CXXFLAGS = -O0' >"$tree/conf/build/Makefile"
expect 'objects of a folder that was configured by hand in another way' 0 '^removed$' left -O2

# --- a command without the symbols of the kernel
mkdir "$tree/refuses"
printf '#!/bin/sh\nexit 1\n' >"$tree/refuses/unshare"
chmod +x "$tree/refuses/unshare"
hidden() { sh "$source/test/lib/no_kernel_symbols.sh" sh -c "$@"; }
# shellcheck disable=SC2016
for path in "$PATH" "$tree/refuses:$PATH"; do
  PATH=$path expect 'arguments and status of a command' 3 '^it has a b and c$' hidden 'echo "it has $1 and $2"; exit 3' sh 'a b' c
done
if [ -r /proc/kallsyms ] && unshare -m mount --bind /dev/null /proc/kallsyms 2>/dev/null; then
  expect 'no symbols' 0 '^0$' hidden 'wc -c </proc/kallsyms'
fi

# --- run-tests in a tree of its own
mkdir -p "$tree/bin" "$tree/test/vm" "$tree/build/address"
cp "$source/run-tests" "$tree/"
cp -r "$source/test/lib" "$tree/test/"
cp "$source"/test/vm/packages* "$tree/test/vm/"
chmod -R u+w "$tree"
cat >"$tree/bin/make" <<'MAKE'
#!/bin/sh
echo "$* ${CK_RUN_CASE:+filtered}" >>"$tree/made"
case " $* " in *' check '*)
  mkdir -p "$2/test"
  echo ':global-test-result: PASS' >"$2/test/a_test.trs"
  echo '100%: Checks: 1, Failures: 0, Errors: 0' >"$2/test/a_test.log" ;;
esac
MAKE
chmod +x "$tree/bin/make"
touch -d "1 hour ago" "$tree/configure"
echo 'VERSION = 2' >"$tree/build/Makefile"
echo '--enable-werror --enable-precompiled --enable-joined=programs CXXFLAGS=-O2 -g1 CFLAGS=-O2 -g1' >"$tree/build/options"
run() { tree=$tree PATH=$tree/bin:$PATH ERDMA_SKIP_INSTALL=1 "$tree/run-tests" "$@"; }
run_and_show() { rm -f "$tree/made"; run "$@"; local status=$?; sed 's/^/made: /' "$tree/made"; return $status; }
expect 'a stage that does not exist' 1 'no stage .chekc' run check chekc
expect 'check by itself builds the product with its own flags' 0 \
  '^made: (-[Cj][^ ]* |/[^ ]* )*all [^=]*$' run_and_show check
touch "$tree/build/address/Makefile"
echo '--enable-werror --enable-precompiled --enable-sanitizer=address,undefined --enable-joined=all CXXFLAGS=-O1 -g1 -D_GLIBCXX_ASSERTIONS CFLAGS=-O1 -g1' \
  >"$tree/build/address/options"
expect 'tests have flags of their own' 0 \
  '^made: .* check TESTS= CXXFLAGS=-O0 -g1 -fno-sanitize=null,alignment -D_GLIBCXX_ASSERTIONS CFLAGS=-O0 -g1 -fno-sanitize=null,alignment -D_GLIBCXX_ASSERTIONS *$' run_and_show address-build
mkdir -p "$tree/build/thread/test"
touch "$tree/build/thread/Makefile" "$tree/test/slow_test.cc"
echo '--enable-werror --enable-precompiled --enable-sanitizer=thread --enable-joined=all CXXFLAGS=-O1 -g1 -D_GLIBCXX_ASSERTIONS CFLAGS=-O1 -g1' \
  >"$tree/build/thread/options"
printf '%s\n' '# A list.' '' 'absent why' >"$tree/test/thread.lacking"
expect 'a suite to leave out that does not exist' 1 'absent: no such suite' run thread
echo 'slow takes long' | tee "$tree/test/thread.lacking" >"$tree/test/address.lacking"
expect 'a suite that is left out with AddressSanitizer' 0 '^made: .*filter-out test/slow_test.cc,' run_and_show address
if g++ -fsanitize=thread -x c++ -o "$tree/probe" - <<<'int main() {}' 2>/dev/null && setarch "$(uname -m)" -R "$tree/probe"; then
  expect 'a suite that is left out' 0 '^made: .*filter-out test/slow_test.cc,' run_and_show thread
  expect 'it counts as skipped' 0 '^1 passed, 0 failed, 1 skipped' run thread
  expect 'its reason' 0 '^ *SKIP: slow: takes long' run thread
fi
# shellcheck disable=SC2097,SC2098
CK_RUN_CASE=none expect 'an inherited filter' 0 '^1 passed' run_and_show check
! grep -q filtered "$tree/made" || { echo 'a filter of the environment reaches the tests'; bad=1; }
expect 'quick and another stage' 1 '^  distcheck ' run quick distcheck
expect 'quick and another stage' 1 '^  clients ' run quick distcheck

echo 'echo "PASS: in ${ERDMA_VM_SECONDS:-840} s"' >"$tree/test/vm/run.sh"
if [ "$(uname -m)" = x86_64 ]; then
  run vm vm-nic >/dev/null
  expect 'the limit of the virtual machine' 0 'in 2[45].. s' cat "$logs/vm.log"
  expect 'the limit of the virtual machine for NICs' 0 'in 3[34].. s' cat "$logs/vm-nic.log"
fi

# The matrix needs the archive of Debian, and root.
mkdir -p "$tree/test/matrix"
cp "$source/test/matrix/run.sh" "$tree/test/matrix/"
echo 'echo "SKIP: clang"' >"$tree/test/matrix/clang.sh"
printf '#!/bin/sh\necho no archive\nexit 1\n' >"$tree/bin/debootstrap"
chmod +x "$tree/bin/debootstrap"
expect 'a matrix that cannot be made' 1 '^ *SKIP: (matrix .*|trixie .debootstrap failed: no archive.)$' run matrix
expect 'it counts as skipped' 1 '^0 passed, 0 failed, [24] skipped' run matrix
mkdir -p "$tree/test/packages"
echo 'echo "PASS: $top_builddir"' >"$tree/test/packages/run.sh"
expect 'packages' 0 '^1 passed, 0 failed, 0 skipped' run packages
expect 'packages have a folder of the build' 0 "^PASS: $tree/build$" cat "$logs/packages.log"

# tarball NAME FILE...
tarball() {
  mkdir -p "$tree/$1/prov"
  (cd "$tree" && touch "${@:2}" && tar cJf "build/$1.tar.xz" "$1")
  rm -r "${tree:?}/$1"
}
if command -v git >/dev/null; then
  mkdir -p "$tree/prov"
  touch "$tree/prov/a" "$tree/prov/b"
  git -C "$tree" init -q && git -C "$tree" add prov
  tarball erdma-2 erdma-2/prov/a erdma-2/prov/b
  tarball erdma-1 erdma-1/prov/a
  expect 'the tarball of this version' 0 '^1 passed' run distcheck
  tarball erdma-1 erdma-1/prov/a erdma-1/prov/b
  tarball erdma-2 erdma-2/prov/a
  expect 'a file that the tarball lacks' 1 'not in the tarball: prov/b' run distcheck
  GIT_TEST_ASSUME_DIFFERENT_OWNER=1 expect 'the same in a tree of another user' 1 \
    'not in the tarball: prov/b' run distcheck
  tarball erdma-2 erdma-2/prov/a erdma-2/prov/b
  GIT_TEST_ASSUME_DIFFERENT_OWNER=1 expect 'a tree of another user' 0 '^1 passed' run distcheck
  rm -rf "$tree/.git"
  expect 'a tree from a tarball' 0 '^1 passed' run distcheck
fi

# --- the clients, built by two lanes at once
cat >"$tree/bin/compiler" <<'COMPILER'
#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo "$2" >>"$tree/compiled"
touch "$2"
[ -z "${broken:-}" ] && chmod +x "$2"
COMPILER
chmod +x "$tree/bin/compiler"
ln -s compiler "$tree/bin/mpicc"
mkdir "$tree/clients"
clients() {
  tree=$tree PATH=$tree/bin:$PATH CC=compiler CXX=compiler bash -c 'set -u
    top=$1 here=$1/test/clients bin=$2/clients; . "$here/build.sh"; build_clients' _ "$source" "$tree"
}
broken=yes expect 'a compiler that fails' 1 '' clients
# shellcheck disable=SC2144
if [ -e "$tree/clients/refuse_cma" ]; then
  echo 'a program that was not linked to its end has its name'
  bad=1
fi
rm -f "$tree/compiled"
clients & clients & wait
twice=$(xargs -r -n 1 basename <"$tree/compiled" | sed 's/\.new$//' | sort | uniq -d)
[ -z "$twice" ] || { echo "built twice at once:" $twice; bad=1; }
expect 'the clients' 0 fi_order ls "$tree/clients"
exit $bad
