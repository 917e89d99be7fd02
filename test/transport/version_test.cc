#include "fake/captured_log.h"
#include "transport/conformance_pairs.h"

/// Tests that endpoints with another version of the protocol's headers do not connect.
namespace erdma::test {
namespace {

constexpr uint8_t kOurs = 7;

void open_with_version(Side& side, uint8_t version) {
  if (g_factories.data() == kShm) {
    transport::shm::Options options;
    options.protocol_version = version;
    return open_shm(side, options);
  }
  transport::verbs::Options options;
  options.protocol_version = version;
  open_verbs(side, options, true);
}

size_t lines_with(const char* text) {
  const std::lock_guard guard(g_log_mutex);
  size_t count = 0;
  for (const LogLine& line : g_log) count += line.level == FI_LOG_WARN && contains(line.text, text);
  return count;
}

TEST_CASE(.tear_down = close_device);

TEST(the_same_version_connects) {
  Pair pair;
  open_with_version(pair.a, kOurs);
  open_with_version(pair.b, kOurs);
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  ck_assert_uint_eq(lines_with("version"), 0);
}

TEST(another_version_is_refused_with_one_line_on_each_side, 2) {
  Pair pair;
  open_with_version(pair.a, kOurs);
  open_with_version(pair.b, uint8_t(_i ? kOurs - 1 : kOurs + 1));
  transport::Link& link = pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
  ck_assert_uint_eq(pair.a.sink->downs.size(), 1);
  ck_assert_ptr_eq(pair.a.sink->downs[0].link, &link);
  ck_assert_int_eq(pair.a.sink->downs[0].status, -FI_ECONNREFUSED);
  ck_assert(pair.b.sink->packets.empty());
  const char* const asked = _i ? "protocol (7, here 6)" : "protocol (7, here 8)";
  const char* const asks = _i ? "protocol (6, here 7)" : "protocol (8, here 7)";
  ck_assert_uint_eq(lines_with("another version of the protocol"), 2);
  ck_assert_uint_eq(lines_with(asked), 1);
  ck_assert_uint_eq(lines_with(asks), 1);
  ck_assert_uint_eq(lines_with("install the same version of the provider on all hosts"), 2);
}

}  // namespace

}  // namespace erdma::test
