#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that a layer includes only layers below it: fabric > protocol > transport > hmem > util.
cd "${srcdir:-.}/prov/erdma" || exit 1
bad=0

# deny FOLDERS PATTERN [grep option]: no file in FOLDERS includes PATTERN.
deny() {
  folders=$1 pattern=$2
  shift 2
  for folder in $folders; do
    [ -d "$folder" ] || continue
    if grep -rnE "$@" "^ *# *include *$pattern" "$folder"; then bad=1; fi
  done
}

deny util      '"(fabric|protocol|transport|hmem)/'
deny hmem      '"(fabric|protocol|transport)/'
deny transport '"(fabric|protocol)/'
deny protocol  '"(fabric/|transport/(verbs|shm|self|staging)/)'
deny transport/shm   '"transport/(verbs|self|staging)/'
deny transport/self  '"transport/(verbs|shm|staging)/'
deny transport/verbs '"transport/(shm|self|staging)/'
deny transport/staging '"transport/(verbs|shm|self)/'
deny .         '<(infiniband/|rdma/rdma_)' --exclude-dir=verbs
deny .         '<cuda'        --exclude-dir=hmem
deny 'fabric protocol transport util' '"hmem/cuda_api'
deny .         '("(fake|libcheck)|<check.h>)'
# util/log.cc needs the name that log lines carry, which is a member of fi_provider.
deny 'util hmem protocol transport' '<rdma/(fi_[a-df-z]|fi_e[^r]|providers/fi_prov)' --exclude=log.cc
# The program fi_erdma shares with the provider only the files that need no library.
if [ -d ../fi_erdma ] && grep -rnE '^ *# *include *"(fabric|protocol|transport|hmem|util)/' ../fi_erdma |
  grep -vE '"util/(memory_file|spelling|stat_layout|stat_sequence)\.h"'; then bad=1; fi
# Only domain_transports.cc names the transports together.
for file in $(grep -rlE '^ *# *include *"transport/(verbs|shm|self|staging)/' fabric 2>/dev/null); do
  kinds=$(grep -ohE '"transport/(verbs|shm|self|staging)/' "$file" | sort -u | wc -l)
  case $file in fabric/domain_transports.cc) continue ;; esac
  if [ "$kinds" -gt 1 ]; then
    echo "$file: only fabric/domain_transports.cc includes more than one transport"
    bad=1
  fi
done
# Every test is counted (test/libcheck.h), except those of the simulated devices.
cd ../../test || exit 1
if grep -rn --include='*.cc' --include='*.h' '# *include *<check.h>' . | grep -v '^./libcheck.h:'; then bad=1; fi
if grep -rnE --include='*.cc' --include='*.h' 'START_TEST|tcase_create|[.]counted = false' . |
  grep -vE '^./(libcheck.h|suites.cc|resources_test.cc|softcuda/.*_test.cc|softerdma/.*_test.cc):'; then bad=1; fi
exit $bad
