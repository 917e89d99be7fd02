#include "fi_erdma/snapshot.h"

#include <memory>
#include <string>
#include <vector>

#include "fi_erdma/pages.h"
#include "libcheck.h"

using namespace erdma::test;
using erdma::util::StatPage;
using fi_erdma::read_page;
using fi_erdma::ReadResult;
using fi_erdma::Snapshot;

namespace {

Snapshot read(std::span<const std::byte> bytes) {
  ReadResult result = read_page(bytes);
  ck_assert_msg(result.snapshot.has_value(), "%s", result.fault.c_str());
  return std::move(*result.snapshot);
}
const fi_erdma::BlockKind& endpoints(const Snapshot& snapshot) {
  const auto* const kind = snapshot.kind("endpoint");
  ck_assert_ptr_nonnull(kind);
  return *kind;
}
void check_refused(Copy& copy, const char* why) {
  const ReadResult result = read_page(copy.bytes());
  ck_assert(!result.snapshot);
  ck_assert_msg(result.fault.find(why) != std::string::npos, "%s", result.fault.c_str());
}

TEST(a_reader_finds_by_name_what_the_writer_put_there) {
  const auto page = make_page();
  show_process(*page, 3, "train");
  show_endpoint(*page, "10.0.0.1:5000").bytes = 12345;
  const Snapshot snapshot = read(page->bytes());
  ck_assert_ptr_nonnull(snapshot.process());
  ck_assert_uint_eq(*snapshot.process()->number("rank"), 3);
  ck_assert(snapshot.process()->text("command") == "train");
  ck_assert_uint_eq(endpoints(snapshot).blocks.size(), 1);
  ck_assert_uint_eq(*endpoints(snapshot).blocks[0].number("ring_tx_bytes"), 12345);
  ck_assert(endpoints(snapshot).blocks[0].text("address") == "10.0.0.1:5000");
  ck_assert(endpoints(snapshot).fields[0].unit == "bytes");
}

TEST(a_counter_that_grows_is_read_without_any_change_being_told) {
  const auto page = make_page();
  ShownEndpoint& endpoint = show_endpoint(*page, "a");
  for (uint64_t bytes : {1u, 70u, 5000u}) {
    endpoint.bytes = bytes;
    ck_assert_uint_eq(*endpoints(read(page->bytes())).blocks[0].number("ring_tx_bytes"), bytes);
  }
}

TEST(what_is_unknown_and_what_the_page_lacks_are_empty) {
  const auto page = make_page();
  show_process(*page, erdma::stat_layout::kUnknown);
  const Snapshot snapshot = read(page->bytes());
  ck_assert(!snapshot.process()->number("rank"));
  ck_assert(!snapshot.process()->number("no_such_field"));
  ck_assert(snapshot.process()->text("no_such_field").empty());
  ck_assert_ptr_null(snapshot.kind("no_such_kind"));
}

TEST(a_block_that_was_given_back_is_not_shown_and_is_used_again) {
  const auto page = make_page();
  ShownEndpoint& first = show_endpoint(*page, "a");
  show_endpoint(*page, "b");
  first.bytes = 7;
  page->give_back(block_of(first));
  ck_assert_uint_eq(endpoints(read(page->bytes())).blocks.size(), 1);
  ck_assert(endpoints(read(page->bytes())).blocks[0].text("address") == "b");
  ck_assert_ptr_eq(&show_endpoint(*page, "c"), &first);
  const Snapshot snapshot = read(page->bytes());
  ck_assert(endpoints(snapshot).blocks[0].text("address") == "c");
  ck_assert_uint_eq(*endpoints(snapshot).blocks[0].number("ring_tx_bytes"), 0);
}

/// A page whose endpoints have parts with one more number and one more text.
std::unique_ptr<StatPage> make_page_with_parts() {
  using namespace erdma::stat_layout;
  std::vector<erdma::util::StatKind> kinds(std::begin(kShownKinds), std::end(kShownKinds));
  std::vector<erdma::util::StatField> fields(std::begin(kShownFields), std::end(kShownFields));
  kinds.push_back({"endpoint_more", 64, 100, 1});
  fields.push_back({"more", 2, Type::number, Meaning::gauge, "", 8, 8});
  fields.push_back({"word", 2, Type::text, Meaning::fact, "", 16, 16});
  auto page = StatPage::create(kinds, fields);
  ck_assert(bool(page));
  return std::move(*page);
}

TEST(fields_of_a_part_are_those_of_the_block_to_which_it_belongs) {
  const auto page = make_page_with_parts();
  ShownEndpoint& without = show_endpoint(*page, "a");
  ShownEndpoint& with = show_endpoint(*page, "b");
  std::byte* const part = page->part(block_of(with), 2);
  ck_assert_ptr_nonnull(part);
  *reinterpret_cast<uint64_t*>(part + 8) = 5;
  erdma::util::put_text({reinterpret_cast<char*>(part + 16), 16}, "up");
  const Snapshot snapshot = read(page->bytes());
  ck_assert_ptr_null(snapshot.kind("endpoint_more"));
  ck_assert_uint_eq(endpoints(snapshot).fields.size(), 4);
  const auto& blocks = endpoints(snapshot).blocks;
  ck_assert_uint_eq(blocks.size(), 2);
  ck_assert_uint_eq(*blocks[0].number("more"), 0);
  ck_assert(blocks[0].text("word").empty());
  ck_assert_uint_eq(*blocks[1].number("more"), 5);
  ck_assert(blocks[1].text("word") == "up");
  page->give_back(block_of(with));
  show_endpoint(*page, "c");
  ck_assert_uint_eq(*endpoints(read(page->bytes())).blocks[1].number("more"), 0);
  page->give_back(block_of(without));
  ck_assert_uint_eq(endpoints(read(page->bytes())).blocks.size(), 1);
}

TEST(a_part_of_itself_or_of_a_part_is_not_sound) {
  const auto page = make_page_with_parts();
  show_endpoint(*page, "a");
  for (const uint32_t part_of : {3u, 4u, UINT32_MAX}) {
    Copy copy(*page);
    copy.kind(2).part_of = part_of;
    check_refused(copy, "not sound");
  }
  Copy copy(*page);
  copy.kind(1).part_of = 1;
  check_refused(copy, "not sound");
}

TEST(a_block_that_is_being_changed_is_counted_and_left_out) {
  const auto page = make_page();
  ShownEndpoint& endpoint = show_endpoint(*page, "a");
  StatPage::begin_change(block_of(endpoint));
  ck_assert_uint_eq(endpoints(read(page->bytes())).blocks.size(), 0);
  ck_assert_uint_eq(endpoints(read(page->bytes())).unsettled, 1);
  StatPage::end_change(block_of(endpoint));
  ck_assert_uint_eq(endpoints(read(page->bytes())).blocks.size(), 1);
  ck_assert_uint_eq(endpoints(read(page->bytes())).unsettled, 0);
}

TEST(a_newer_provider_has_larger_tables_and_kinds_and_types_that_nobody_knows) {
  const auto page = make_page();
  show_process(*page, 5);
  Copy copy(*page);
  // Entries of the directory with 8 bytes more each, behind everything.
  std::vector<uint64_t> words = copy.words;
  const size_t wide = sizeof(erdma::stat_layout::Field) + 8, count = copy.header().fields;
  words.resize(words.size() + (wide * count + 7) / 8);
  std::swap(copy.words, words);
  for (size_t i = 0; i < count; ++i)
    std::memcpy(copy.data() + copy.size + i * wide, &copy.field(i), sizeof(copy.field(0)));
  copy.header().fields_offset = uint32_t(copy.size);
  copy.header().field_bytes = uint32_t(wide);
  copy.size = copy.words.size() * 8;
  copy.header().bytes = copy.size;
  auto* const command = reinterpret_cast<erdma::stat_layout::Field*>(
      copy.data() + copy.header().fields_offset + 2 * wide);
  command->type = 99;
  std::memcpy(copy.kind(1).name, "future", 7);
  const Snapshot snapshot = read(copy.bytes());
  ck_assert_uint_eq(*snapshot.process()->number("rank"), 5);
  ck_assert(snapshot.process()->text("command").empty());
  ck_assert_ptr_nonnull(snapshot.kind("future"));
}

TEST(text_that_would_move_a_cursor_is_made_printable) {
  const auto page = make_page();
  show_process(*page, 0, "\x1b[2J\n\xff z");
  ck_assert(read(page->bytes()).process()->text("command") == "?[2J?? z");
}

TEST(a_text_without_an_end_ends_with_its_room) {
  const auto page = make_page();
  ShownProcess& process = show_process(*page, 0);
  std::memset(process.command, 'x', sizeof(process.command));
  ck_assert(read(page->bytes()).process()->text("command") == std::string(16, 'x'));
}

TEST(a_text_is_cut_where_no_right_one_is_so_long) {
  constexpr erdma::util::StatKind kKinds[] = {{"process", 16384, 1}};
  constexpr erdma::util::StatField kFields[] = {{"command", 0, erdma::stat_layout::Type::text,
                                                 erdma::stat_layout::Meaning::fact, "", 8, 8192}};
  auto page = StatPage::create(kKinds, kFields);
  ck_assert(bool(page));
  std::byte* const process = (*page)->take(0);
  std::memset(process + 8, 'x', 8192);
  StatPage::end_change(process);
  ck_assert(read((*page)->bytes()).process()->text("command") == std::string(4096, 'x'));
}

TEST(a_block_is_found_by_its_index) {
  const auto page = make_page();
  for (const char* const address : {"a", "b", "c"}) show_endpoint(*page, address);
  ShownEndpoint& last = show_endpoint(*page, "d");
  page->give_back(block_of(last) - 2 * sizeof(ShownEndpoint));
  const Snapshot snapshot = read(page->bytes());
  const auto& kind = endpoints(snapshot);
  ck_assert(kind.block(0)->text("address") == "a");
  ck_assert_ptr_null(kind.block(1));
  ck_assert(kind.block(3)->text("address") == "d");
  ck_assert_ptr_null(kind.block(4));
}

TEST(a_page_is_refused_with_the_reason) {
  const auto page = make_page();
  const Copy sound(*page);
  Copy copy = sound;
  copy.header().ready = 0;
  check_refused(copy, "not ready");
  (copy = sound).header().magic[0] ^= 1;
  check_refused(copy, "no page of erdma");
  (copy = sound).header().layout = 2;
  check_refused(copy, "another layout");
  (copy = sound).header().byte_order = 0x04030201;
  check_refused(copy, "byte order");
  (copy = sound).header().bytes -= 1;
  check_refused(copy, "another size");
  (copy = sound).header().kinds = 17;
  check_refused(copy, "tables");
  (copy = sound).header().fields = 1025;
  check_refused(copy, "tables");
  (copy = sound).header().fields_offset = uint32_t(copy.size - 8);
  check_refused(copy, "tables");
  (copy = sound).header().kind_bytes = 8;
  check_refused(copy, "tables");
  (copy = sound).kind(1).offset = copy.size - 64;
  check_refused(copy, "table of blocks");
  (copy = sound).kind(1).offset += 4;
  check_refused(copy, "table of blocks");
  (copy = sound).kind(1).used = copy.kind(1).capacity + 1;
  check_refused(copy, "table of blocks");
  (copy = sound).kind(1).block_bytes = 0;
  check_refused(copy, "table of blocks");
  copy = sound;
  copy.size = sizeof(erdma::stat_layout::Header) - 1;
  check_refused(copy, "too small");
}

TEST(a_field_outside_of_its_block_is_left_out) {
  const auto page = make_page();
  show_process(*page, 5);
  const Copy sound(*page);
  for (const uint32_t offset : {0u, 60u, 64u, 65u, 1u << 31, UINT32_MAX - 7}) {
    Copy copy = sound;
    copy.field(1).offset = offset;
    ck_assert(!read(copy.bytes()).process()->number("rank"));
    ck_assert_uint_eq(*read(copy.bytes()).process()->number("pid"), 4711);
  }
}

TEST(a_page_may_cost_no_more_than_the_caller_says) {
  const auto page = make_page();
  for (int i = 0; i < 10; ++i) show_endpoint(*page, "a");
  const size_t cost = read_page(page->bytes()).cost;
  ck_assert(read_page(page->bytes(), cost).snapshot.has_value());
  const ReadResult refused = read_page(page->bytes(), cost - 1);
  ck_assert(!refused.snapshot);
  ck_assert_uint_ge(refused.cost, cost);
}

TEST(a_page_that_would_take_long_is_refused) {
  const auto page = make_page();
  Copy copy(*page);
  copy.words.assign((size_t(32) << 20) / 8, UINT64_MAX - 1);
  Copy head(*page);
  std::memcpy(copy.data(), head.data(), 4096);
  copy.size = size_t(32) << 20;
  copy.header().bytes = copy.size;
  for (size_t i = 0; i < 2; ++i) {
    copy.kind(i).offset = 4096;
    copy.kind(i).block_bytes = 8;
    copy.kind(i).capacity = copy.kind(i).used = uint32_t((copy.size - 4096) / 8);
  }
  check_refused(copy, "more than statistics can");
}

}  // namespace
