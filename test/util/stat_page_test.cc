#include "util/stat_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <span>
#include <vector>

#include "fake/refused_call.h"
#include "libcheck.h"
#include "util/process_epoch.h"

namespace erdma::util {
namespace {

constexpr StatKind kKinds[] = {{"one", 64, 1}, {"many", 128, 40}};
constexpr StatField kFields[] = {
    {"number", 1, stat_layout::Type::number, stat_layout::Meaning::counter, "bytes", 8, 8}};

std::unique_ptr<StatPage> make() {
  auto page = StatPage::create(kKinds, kFields);
  ck_assert(bool(page));
  return std::move(*page);
}
template <typename T>
const T& at(const StatPage& page, size_t offset) {
  return *reinterpret_cast<const T*>(page.bytes().data() + offset);
}
const stat_layout::Kind& kind(const StatPage& page, size_t i) {
  return at<stat_layout::Kind>(page, sizeof(stat_layout::Header) + i * sizeof(stat_layout::Kind));
}

TEST(the_tables_say_what_the_page_has) {
  const auto page = make();
  const auto& header = at<stat_layout::Header>(*page, 0);
  ck_assert_int_eq(std::memcmp(header.magic, "erdmastt", 8), 0);
  ck_assert_uint_eq(header.layout, 1);
  ck_assert_uint_eq(header.ready, 1);
  ck_assert_uint_eq(header.bytes, page->bytes().size());
  ck_assert_uint_eq(header.kinds, 2);
  ck_assert_str_eq(kind(*page, 1).name, "many");
  ck_assert_uint_eq(kind(*page, 1).block_bytes, 128);
  ck_assert_uint_eq(kind(*page, 1).capacity, 40);
  const auto& field = at<stat_layout::Field>(*page, header.fields_offset);
  ck_assert_str_eq(field.name, "number");
  ck_assert_str_eq(field.unit, "bytes");
  ck_assert_uint_eq(field.kind, 1);
  ck_assert_uint_eq(field.offset, 8);
}

TEST(each_block_is_given_once_until_all_are_in_use) {
  const auto page = make();
  std::set<std::byte*> blocks;
  for (int i = 0; i < 40; ++i) blocks.insert(page->take(1));
  ck_assert_uint_eq(blocks.size(), 40);
  ck_assert_int_eq(int(blocks.count(nullptr)), 0);
  ck_assert_ptr_null(page->take(1));
  ck_assert_ptr_nonnull(page->take(0));
  std::byte* const given = *blocks.begin();
  page->give_back(given);
  ck_assert_ptr_eq(page->take(1), given);
}

TEST(a_block_knows_its_place_among_those_of_its_kind) {
  const auto page = make();
  ck_assert_uint_eq(page->index_of(page->take(0)), 0);
  for (uint32_t i = 0; i < 3; ++i) ck_assert_uint_eq(page->index_of(page->take(1)), i);
}

TEST(the_number_of_used_blocks_grows_with_the_first_use_only) {
  const auto page = make();
  for (int i = 0; i < 3; ++i) page->give_back(page->take(1));
  ck_assert_uint_eq(kind(*page, 1).used, 1);
  page->take(1);
  page->take(1);
  ck_assert_uint_eq(kind(*page, 1).used, 2);
}

TEST(a_block_counts_its_changes) {
  const auto page = make();
  std::byte* const block = page->take(0);
  const auto& head = *reinterpret_cast<stat_layout::BlockHead*>(block);
  ck_assert_uint_eq(head.sequence, 1);
  StatPage::end_change(block);
  ck_assert_uint_eq(head.sequence, 2);
  StatPage::begin_change(block);
  ck_assert_uint_eq(head.sequence, 3);
  StatPage::end_change(block);
  ck_assert_uint_eq(head.sequence, 4);
}

TEST(the_file_cannot_change_its_size) {
  const auto page = make();
  const int seals = fcntl(page->fd(), F_GET_SEALS);
  ck_assert_int_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                   F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  ck_assert_int_eq(ftruncate(page->fd(), 0), -1);
}

/// Endpoints in the child may still write to blocks of the parent, which must not crash the child.
TEST(a_forked_child_takes_no_block_and_can_write_those_that_were_taken) {
  register_fork_handler();
  const auto page = make();
  std::byte* const block = page->take(1);
  const pid_t child = fork();
  if (child == 0) {
    block[64] = std::byte{1};
    page->give_back(block);
    _exit(page->ours() || page->take(1) ? 1 : 0);
  }
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status));
  ck_assert_int_eq(WEXITSTATUS(status), 0);
  ck_assert_uint_eq(reinterpret_cast<stat_layout::BlockHead*>(block)->in_use, 1);
}

/// The bytes of a mapping that are in memory, from mincore(2).
size_t resident_bytes(std::span<const std::byte> memory) {
  const auto unit = size_t(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(memory.size() / unit);
  ck_assert_int_eq(mincore(const_cast<std::byte*>(memory.data()), memory.size(), pages.data()), 0);
  return unit * size_t(std::ranges::count_if(pages, [](unsigned char page) { return page & 1; }));
}

/// Locks all future mappings, if the host's limit has room. mlockall() succeeds with any limit, but
/// then mappings beyond the limit fail.
void lock_what_is_mapped_from_here_on() {
  constexpr size_t kRoom = 6 << 20;
  if (mlockall(MCL_FUTURE)) return;
  void* const room = mmap(nullptr, kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED)
    munlockall();
  else
    munmap(room, kRoom);
}

TEST(memory_comes_with_blocks_and_not_before_even_where_all_is_locked) {
  constexpr StatKind kLarge[] = {{"few", 64, 1}, {"large", 65536, 64}};
  lock_what_is_mapped_from_here_on();  // if not, the rest must hold anyway
  auto page = StatPage::create(kLarge, kFields);
  ck_assert(bool(page));
  const size_t tables = resident_bytes((*page)->bytes());
  ck_assert_uint_le(tables, 65536);
  for (size_t i = 1; i <= 2; ++i) {
    std::byte* const block = (*page)->take(1);
    ck_assert_ptr_nonnull(block);
    std::memset(block + 8, 1, 65536 - 8);
    ck_assert_uint_eq(resident_bytes((*page)->bytes()), tables + i * 65536);
  }
  munlockall();
}

constexpr StatKind kWithParts[] = {{"whole", 64, 200}, {"part", 64, 200, 0}};

TEST(a_part_belongs_to_a_block_until_the_block_is_taken_again) {
  auto made = StatPage::create(kWithParts, kFields);
  ck_assert(bool(made));
  StatPage& page = **made;
  ck_assert_uint_eq(kind(page, 1).part_of, 1);
  std::byte *const first = page.take(0), *const second = page.take(0);
  ck_assert_ptr_null(page.known_part(second, 1));
  ck_assert_uint_eq(kind(page, 1).used, 0);
  std::byte* const part = page.part(second, 1);
  ck_assert_ptr_nonnull(part);
  ck_assert_ptr_eq(page.part(second, 1), part);
  ck_assert_ptr_eq(page.known_part(second, 1), part);
  ck_assert_ptr_null(page.known_part(first, 1));
  ck_assert_uint_eq(kind(page, 1).used, 2);
  ck_assert_uint_eq(page.index_of(part), 1);
  const auto& head = *reinterpret_cast<const stat_layout::BlockHead*>(part);
  ck_assert_uint_eq(head.in_use, 1);
  part[8] = std::byte{7};
  page.give_back(second);
  ck_assert_ptr_eq(page.take(0), second);
  ck_assert_uint_eq(head.in_use, 0);
  ck_assert_ptr_null(page.known_part(second, 1));
  ck_assert_ptr_eq(page.part(second, 1), part);
  ck_assert_int_eq(int(part[8]), 0);
}

TEST(a_part_has_memory_though_those_before_it_have_none) {
  auto made = StatPage::create(kWithParts, kFields);
  ck_assert(bool(made));
  StatPage& page = **made;
  std::byte* last = nullptr;
  while (std::byte* const block = page.take(0)) last = block;
  const size_t before = resident_bytes(page.bytes());
  std::byte* const part = page.part(last, 1);
  ck_assert_ptr_nonnull(part);
  std::memset(part + 8, 1, 56);
  ck_assert_uint_le(resident_bytes(page.bytes()) - before, size_t(sysconf(_SC_PAGESIZE)));
}

// Without a check, the kernel would end the process by SIGXFSZ.
TEST(where_no_file_may_be_so_large_there_is_no_page) {
  rlimit before{};
  ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
  const int error = StatPage::create(kKinds, kFields).error();
  ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
  ck_assert_int_eq(error, -EFBIG);
}

/// As where vm.memfd_noexec is 2.
TEST(where_no_file_may_be_executable_there_is_a_page) {
  fake::refuse_call(SYS_memfd_create, EACCES, 1, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ck_assert(bool(StatPage::create(kKinds, kFields)));
}

TEST(text_is_cut_where_its_room_ends) {
  char room[4] = {'x', 'x', 'x', 'x'};
  put_text(room, "ab");
  ck_assert_str_eq(room, "ab");
  put_text(room, "abcdef");
  ck_assert_str_eq(room, "abc");
}

}  // namespace
}  // namespace erdma::util
