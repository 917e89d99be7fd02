#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Proves that each structure test can fail: it creates a small tree that passes all of them, then plants one
# violation at a time, which the right test must refuse.
checks=$(cd "${srcdir:-.}/test" && pwd) || exit 1
folder=$(mktemp -d "${TMPDIR:-/tmp}/erdma-selftest.XXXXXX") || exit 1
trap 'rm -rf "$folder"' EXIT
bad=0

plant_clean() {
  rm -rf "${folder:?}"/*
  for layer in util hmem protocol transport/shm transport/self fabric; do
    mkdir -p "$folder/prov/erdma/$layer"
  done
  mkdir -p "$folder/prov/fi_erdma" "$folder/man" "$folder/test/util"
  echo '#include "transport/shm/shm.h"' >"$folder/prov/erdma/fabric/domain_transports.cc"
  echo '#include "transport/self/self.h"' >>"$folder/prov/erdma/fabric/domain_transports.cc"
  echo 'const char* kNames[] = {"FI_ERDMA_CMA"};' >"$folder/prov/erdma/fabric/env.cc"
  printf '    OF_PEER(since, "ns", Meaning::fact),\n' >"$folder/prov/erdma/fabric/stat_blocks.cc"
  echo '#include <rdma/fi_errno.h>' >"$folder/prov/erdma/util/a.cc"
  echo '#include "util/a.h"' >"$folder/prov/erdma/protocol/b.cc"
  echo 'static_assert(sizeof(int) == 4);' >>"$folder/prov/erdma/protocol/b.cc"
  echo '`FI_ERDMA_CMA`: auto or off' >"$folder/man/fi_erdma.7.md"
  echo 'int main() {}' >"$folder/test/util/a_test.cc"
  cat >"$folder/prov/erdma/Makefile.include" <<'END'
erdma_sources = \
	prov/erdma/fabric/domain_transports.cc \
	prov/erdma/fabric/env.cc \
	prov/erdma/fabric/stat_blocks.cc \
	prov/erdma/protocol/b.cc \
	prov/erdma/util/a.cc
END
  echo '#include "util/stat_layout.h"' >"$folder/prov/fi_erdma/a.cc"
  printf 'fi_erdma_sources = \\\n\t%s\n' prov/fi_erdma/a.cc >"$folder/prov/fi_erdma/Makefile.include"
  echo 'int x;' >"$folder/test/util/b_test.cc"
  printf '%s = \\\n\t%s\n\n' own_test_programs test/util/a_test test_util_tests_files \
    test/util/b_test.cc test_headers '' >"$folder/test/Makefile.include"
  mkdir -p "$folder/docs" "$folder/examples/kubernetes" "$folder/test/bench"
  echo '[a page](docs/a.md) about `FI_ERDMA_CMA`' >"$folder/README.md"
  echo '# A' >"$folder/docs/a.md"
  echo '`what` it is' >"$folder/docs/wire-protocol.md"
  printf '%s\n' '## What the page shows' '' '| `peer` | `since` |' >"$folder/docs/statistics.md"
  echo '### `the … is made of …`' >"$folder/docs/troubleshooting.md"
  echo 'ERDMA_WARN(CORE, "the %s is made of %s\n", what, which);' >>"$folder/prov/erdma/util/a.cc"
  printf '# date: %s\nless\ttime\tus\terdma\t1\n' now >"$folder/docs/figures.tsv"
  cp "$checks"/bench/*.py "$folder/test/bench/"
  mkdir -p "$folder/test/hardware"
  echo '| `sun` | it shines | `a.cc` | |' >"$folder/docs/hardware.md"
  echo '  assume sun limits' >"$folder/test/hardware/verdicts.sh"
  echo 'a: b' >"$folder/examples/kubernetes/a.yaml"
  echo 'AC_INIT([a], [1.0])' >"$folder/configure.ac"
  printf 'docs_files = \\\n\t%s \\\n\t%s \\\n\t%s \\\n\t%s \\\n\t%s \\\n\t%s \\\n\t%s\n\nexamples_files = \\\n\t%s\n' \
    docs/a.md docs/figures.svg docs/figures.tsv docs/hardware.md docs/statistics.md docs/troubleshooting.md \
    docs/wire-protocol.md examples/kubernetes/a.yaml \
    >"$folder/docs/Makefile.include"
  ! command -v python3 >/dev/null ||
    (cd "$folder" && python3 test/bench/figures.py draw docs/figures.tsv docs/figures.svg)
}

# verdict CHECK pass|refuse WHAT
verdict() {
  if srcdir=$folder sh "$checks/$1" >"$folder/.out" 2>&1; then got=pass; else got=refuse; fi
  if [ $got != "$2" ]; then
    echo "$1: $got instead of $2: $3"
    cat "$folder/.out"
    bad=1
  elif [ "$2" = refuse ] && [ ! -s "$folder/.out" ]; then
    echo "$1: refused in silence: $3"
    bad=1
  fi
}
# refused CHECK FILE LINE: appends LINE to FILE of a clean tree.
refused() {
  plant_clean
  mkdir -p "$(dirname "$folder/$2")"
  echo "$3" >>"$folder/$2"
  verdict "$1" refuse "$2: $3"
}

plant_clean
for check in layers man sizes names odr aborts lists classes docs bench; do verdict check_$check.sh pass 'the clean tree'; done

p=prov/erdma
refused check_layers.sh test/util/a_test.cc '#include <check.h>'
refused check_layers.sh test/util/a_test.cc 'TCase* tc = tcase_create("");'
refused check_layers.sh test/util/a_test.cc 'SUITE(.counted = false);'
refused check_layers.sh $p/util/a.cc '#include "fabric/domain.h"'
refused check_layers.sh $p/hmem/x.cc '# include "transport/transport.h"'
refused check_layers.sh $p/transport/shm/x.h '#include "protocol/wire.h"'
refused check_layers.sh $p/transport/shm/x.h '#include "transport/self/self.h"'
refused check_layers.sh $p/transport/staging/x.h '#include "transport/shm/ring.h"'
refused check_layers.sh $p/protocol/b.cc '#include "transport/shm/ring.h"'
refused check_layers.sh $p/protocol/b.cc '#include "hmem/cuda_api.h"'
refused check_layers.sh $p/protocol/b.cc '#include <rdma/fi_endpoint.h>'
refused check_layers.sh $p/fabric/x.cc '#include <infiniband/verbs.h>'
refused check_layers.sh $p/fabric/x.cc '#include <rdma/rdma_cma.h>'
refused check_layers.sh $p/fabric/x.cc '#include <cuda.h>'
refused check_layers.sh $p/util/a.cc '#include "fake/clock.h"'
refused check_layers.sh prov/fi_erdma/a.cc '#include "util/pool.h"'
refused check_layers.sh $p/fabric/x.cc '#include "transport/shm/a.h"
#include "transport/self/b.h"'

refused check_man.sh $p/fabric/env.cc '"FI_ERDMA_NEW"'
refused check_man.sh man/fi_erdma.7.md '`FI_ERDMA_OLD`'
refused check_man.sh README.md '`FI_ERDMA_OLD`'

if command -v python3 >/dev/null; then
  refused check_docs.sh README.md "$(yes x | head -n 121)"
  refused check_docs.sh README.md '[a page](docs/none.md)'
  refused check_docs.sh README.md '[a place](#none)'
  refused check_docs.sh docs/a.md '`FI_ERDMA_OLD`'
  refused check_docs.sh CHANGELOG.md '## 1.1'
  refused check_docs.sh docs/unlisted.md 'x'
  refused check_docs.sh docs/wire-protocol.md '`which_is_gone`'
  refused check_docs.sh docs/troubleshooting.md '### `the … is made of cheese`'
  refused check_docs.sh $p/util/a.cc '  ERDMA_WARN(CORE, "the moon is made of %s\n", what);'
  refused check_docs.sh $p/util/a.cc 'const char* kCode = "W123";'
  refused check_docs.sh docs/troubleshooting.md '### E123: nothing says so'
  refused check_docs.sh docs/statistics.md '| `moons` | how many |'
  refused check_docs.sh docs/statistics.md '| `peer` | `moons` |'
  refused check_docs.sh $p/fabric/stat_blocks.cc '    OF_PEER(moons, "", Meaning::gauge),'
  refused check_docs.sh $p/fabric/stat_blocks.cc '      COUNTER(Block, kind, "moons", shm.moons),'
  refused check_docs.sh docs/figures.tsv '# date: today'
  refused check_docs.sh docs/hardware.md '| `moon` | it is made of cheese | `device.cc` | |'
  refused check_docs.sh test/hardware/verdicts.sh '  assume moon limits'
  refused check_docs.sh docs/hardware.md '| `sun` | it shines | `moon.cc` | |'
  refused check_bench.sh test/bench/bars.py 'half_limit = lambda size: 1.0'
  refused check_bench.sh test/bench/history.py 'def read(path): return {}'
  plant_clean
  echo 'inline constexpr uint8_t kWireVersion = 2;' >"$folder/$p/transport/shm/wire.h"
  verdict check_docs.sh refuse 'a version that the page lacks'
  echo '| `shm::kWireVersion` | memory | 2 | any change |' >>"$folder/docs/wire-protocol.md"
  verdict check_docs.sh pass 'the version of the code'
  echo 'inline constexpr uint8_t kWireVersion = 3;' >"$folder/$p/transport/shm/wire.h"
  verdict check_docs.sh refuse 'a version that the code does not have'
  ! python3 -c 'import yaml' 2>/dev/null || refused check_docs.sh examples/kubernetes/a.yaml 'a: [b'
fi

refused check_aborts.sh $p/util/a.cc '  abort();'
refused check_aborts.sh $p/util/a.cc '  assert(x);'
refused check_aborts.sh $p/util/a.cc '  std::exit(1);'
refused check_aborts.sh $p/util/a.cc '  // TODO later'

refused check_names.sh $p/util/a.cc '// see /home/someone/notes'
refused check_names.sh $p/util/a.cc 'void sends_a_lot();'
refused check_names.sh README.md 'clone it to /workspace/here'
refused check_names.sh quickstart 'curl https://apt-mirror.example/debian/x'
refused check_names.sh quickstart 'curl http://10.1.2.3/x'

refused check_lists.sh $p/util/unlisted.cc 'int x;'
refused check_lists.sh prov/fi_erdma/unlisted.h 'int x;'
refused check_lists.sh test/util/unlisted_test.cc 'int x;'
plant_clean
rm "$folder/$p/util/a.cc"
verdict check_lists.sh refuse 'a listed file is missing'

plant_clean
printf '%s\n' '#include "util/x.h"' 'struct C { int a; };' >>"$folder/test/util/b_test.cc"
echo 'struct C { char a; };' >"$folder/test/util/x.h"
verdict check_odr.sh refuse 'a class in a file and in a header'
refused check_odr.sh test/util/b_test.cc '{'
for line in 'struct C { int b() { return 1; } };' 'inline int f(int a) {}'; do
  for space in 'namespace {' 'namespace b {' 'namespace a {'; do
    plant_clean
    echo "namespace a { $line }" >>"$folder/$p/util/a.cc"
    echo "$space $line }" >>"$folder/test/util/b_test.cc"
    if [ "$space" = 'namespace a {' ]; then wanted=refuse; else wanted=pass; fi
    verdict check_odr.sh $wanted "$space $line"
  done
done

plant_clean
awk 'BEGIN { for (i = 0; i < 601; i++) print "int x" i ";" }' >"$folder/$p/util/long.cc"
verdict check_sizes.sh refuse 'a file of 601 lines'

# Classes. class_of METHODS WORD: prints a class C with METHODS methods, each declared with WORD.
class_of() {
  plant_clean
  awk -v n="$1" -v word="$2" 'BEGIN {
    print "namespace erdma::util {\nclass C final : public B<int()> {\n public:\n  C();\n  ~C();"
    for (i = 0; i < n; i++) print "  [[nodiscard]] " word " std::map<int, A> f" i "(int a = 1);"
    print "  int x_a{0};\n  int (*x_b)(int) = nullptr;\n  C(const C&) = delete;\n};\n}"
  }' >"$folder/$p/util/c.h"
}
# listed LINE...: exceptions
listed() { printf '%s\n' "$@" >"$folder/test/check_classes.txt"; }
class_of 25 inline
verdict check_classes.sh pass '25 methods'
class_of 13 virtual
verdict check_classes.sh pass '13 virtual methods'
class_of 26 inline
verdict check_classes.sh refuse '26 methods'
listed 'util::C methods 26 for a reason'
verdict check_classes.sh pass '26 methods that are listed'
listed 'util::C methods 26'
verdict check_classes.sh refuse 'listed without a reason'
listed 'util::C methods 25 for a reason'
verdict check_classes.sh refuse 'more than the listed number'
listed 'util::C methods 26 for a reason' 'util::D files 2 for a reason'
verdict check_classes.sh refuse 'a class that is listed and does not exist'
class_of 25 inline
listed 'util::C methods 26 for a reason'
verdict check_classes.sh refuse 'a class that need not be listed'
class_of 14 virtual
verdict check_classes.sh refuse '14 virtual methods'
class_of 2 inline
echo 'namespace erdma::util { std::map<int, A> C::f0(int a) { if (a) { return {}; } return {}; } }' \
  >"$folder/$p/util/c.cc"
verdict check_classes.sh pass 'a class in one file'
echo 'namespace erdma::util { namespace { int g() { return 1; } } std::map<int, A> C::f1(int) {} }' \
  >"$folder/$p/util/d.cc"
verdict check_classes.sh refuse 'a class in two files'

# Exports: any other library exports further symbols.
library=$(ldconfig -p 2>/dev/null | awk '/libfabric\.so/ { print $NF; exit }')
if [ -n "$library" ]; then
  ERDMA_LIBRARY=$library
  export ERDMA_LIBRARY
  verdict check_exports.sh refuse "$library exports more"
fi
# A library of one symbol.
for flag in -z,now -z,nodelete; do
  ERDMA_LIBRARY=$folder/lib$flag.so
  export ERDMA_LIBRARY
  echo 'int fi_prov_ini(void) { return 0; }' |
    ${CC:-cc} -shared -nostdlib "-Wl,$flag" -x c -o "$ERDMA_LIBRARY" - || bad=1
  [ $flag = -z,nodelete ] && wanted=pass || wanted=refuse
  verdict check_exports.sh $wanted "a library linked with $flag"
done
ERDMA_LIBRARY=$folder/none.so
export ERDMA_LIBRARY
verdict check_exports.sh refuse 'no library'
exit $bad
