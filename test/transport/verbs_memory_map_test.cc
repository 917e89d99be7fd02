// Tests how the mappings of this process are found.
#include <sys/auxv.h>
#include <sys/mman.h>

#include <iterator>

#include "libcheck.h"
#include "quiet_fork.h"
#include "transport/verbs/memory_map.h"
#include "transport/verbs_registration_rig.h"

namespace {

using namespace erdma::test;
using erdma::transport::verbs::find_mapping;
using erdma::transport::verbs::is_stack;
using erdma::transport::verbs::Mapping;
using erdma::transport::verbs::parse_mapping;

struct MapLine {
  const char* text;
  bool parsed, ours;
};
constexpr MapLine kLines[] = {
    {"7f00-7f20 rw-p 00000000 00:00 0 ", true, true},
    {"7f00-7f20 rw-p 00000000 00:00 0                          [heap]", true, true},
    {"7f00-7f20 rw-p 00000000 00:00 0                          [anon:mine]", true, true},
    {"7f00-7f20 rw-s 00000000 00:01 1027  /dev/zero (deleted)", true, false},
    {"7f00-7f20 r--p 00000000 00:00 0 ", true, false},
    {"7f00-7f20 ---p 00000000 00:00 0 ", true, false},
    {"7f00-7f20 rw-p 00002000 fd:01 17 /usr/lib/libc.so.6", true, false},
    {"7f00-7f20 rw-p 00000000 00:0f 99 /anon_hugepage (deleted)", true, true},
    {"7f00-7f20 rw-s 00000000 00:0f 99 /anon_hugepage (deleted)", true, false},
    {"7f00-7f20 rw-p 00000000 00:0f 99 /huge/anon_hugepage (deleted)", true, false},
    {"", false, false},
    {"nonsense", false, false},
};

TEST(lines_of_proc_maps_tell_whose_memory_it_is, std::size(kLines)) {
  Mapping mapping;
  ck_assert_int_eq(parse_mapping(kLines[_i].text, mapping), kLines[_i].parsed);
  if (!kLines[_i].parsed) return;
  ck_assert_uint_eq(mapping.range.start, 0x7f00);
  ck_assert_uint_eq(mapping.range.end, 0x7f20);
  ck_assert_int_eq(mapping.ours, kLines[_i].ours);
}

TEST(a_mapping_is_found_by_any_of_its_addresses) {
  Arena arena(8);
  arena.map(2, 4);
  Mapping mapping;
  for (size_t page = 2; page < 6; ++page) {
    ck_assert(find_mapping(reinterpret_cast<uintptr_t>(arena.at(page)), mapping));
    ck_assert(mapping.ours);
    ck_assert_uint_eq(mapping.range.start, reinterpret_cast<uintptr_t>(arena.at(2)));
    ck_assert_uint_eq(mapping.range.end, reinterpret_cast<uintptr_t>(arena.at(6)));
  }
  munmap(arena.at(4), page_bytes());
  ck_assert(!find_mapping(reinterpret_cast<uintptr_t>(arena.at(4)), mapping));
}

TEST(a_mapping_is_found_after_the_first_thread_has_ended) {
  ck_assert(holds_without_first_thread([] {
    Arena arena(1);
    arena.map(0, 1);
    Mapping mapping;
    return find_mapping(reinterpret_cast<uintptr_t>(arena.at(0)), mapping) && mapping.ours;
  }));
}

TEST(the_first_stack_is_known_after_its_thread_has_ended) {
  const uintptr_t top = getauxval(AT_RANDOM);
  ck_assert(holds_without_first_thread([top] { return is_stack({top, top + 1}); }));
}

}  // namespace
