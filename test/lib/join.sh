# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# join.sh KofN FOLDER FILE...: prints a source that includes every Nth of the files, from the Kth on, so that
# their headers are compiled once. Each test file is put into a namespace of its own, unless it opens
# a namespace of the provider. The headers come first, outside of any namespace.
at=${1%of*} of=${1#*of} folder=$2
shift 2
number=0
joined=
for file; do
  number=$((number + 1))
  [ $((number % of)) -ne $((at % of)) ] || joined="$joined $file"
done
echo '#define ERDMA_JOINED'
number=0
for file in $joined; do
  number=$((number + 1))
  case $file in
    *_test.cc)
      printf '#undef ERDMA_JOINED_FILE\n#undef ERDMA_JOINED_NUMBER\n'
      printf '#define ERDMA_JOINED_FILE "%s"\n#define ERDMA_JOINED_NUMBER _%s\n' "$file" $number
      if grep -q '^namespace erdma' "$folder/$file"; then
        printf '#include "%s/%s"\n' "$folder" "$file"
      else
        grep '^#include' "$folder/$file"
        printf 'namespace joined_%s {\n#include "%s/%s"\n}\n' $number "$folder" "$file"
      fi
      ;;
    *) printf '#include "%s/%s"\n' "$folder" "$file" ;;
  esac
done
