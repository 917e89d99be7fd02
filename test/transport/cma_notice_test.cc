// Tests what a user who set no log variable sees of a refused CMA.
#include <cerrno>
#include <string>

#include "fake/captured_log.h"
#include "fake/captured_stderr.h"
#include "fake/cma_calls.h"
#include "libcheck.h"
#include "transport/shm/cma.h"
#include "util/notice.h"

namespace erdma::transport::shm {
namespace {

/// Runs in the forked child of each test.
void set_up() {
  test::g_log_level = -1;
  test::g_log.clear();
}

/// Returns a peer of another user, whose memory this process was refused to read with `error`.
CmaPeer stranger(int error) {
  CmaPeer peer;
  peer.pid = 4711;
  fake::identify(peer).uid += 1;
  peer.read = {Permission::denied, false, CmaReason::none, int16_t(error)};
  peer.write = {Permission::denied, true, CmaReason::unproven, 0};
  return peer;
}

TEST_CASE(.set_up = set_up);

/// The refusals have one cause, although they concern several peers, calls and links.
TEST(refusals_of_any_number_of_peers_are_one_line) {
  const test::CapturedStderr error_output;
  Counters counters;
  for (int i = 0; i < 3; ++i) {
    CmaPeer peer = stranger(EPERM);
    report_refusals(peer, counters);
  }
  CmaPeer other = stranger(0);
  other.write = kAllowed;
  deny(other, CmaCall::write, EPERM, counters);
  const std::string line = error_output.only_write();
  ck_assert_msg(test::contains(line,
                               "CMA is refused as the peer has another uid or gid "
                               "(process_vm_readv, Operation not permitted)"),
                "%s", line.c_str());
  ck_assert(test::contains(line, "Remedy: run both processes with the same uid and gid [W401]\n"));
  ck_assert_uint_eq(counters.cma_refusals, 4);
  ck_assert(test::g_log.empty());
}

TEST(the_log_has_each_instead_where_it_shows_warnings) {
  const test::CapturedStderr error_output;
  test::g_log_level = FI_LOG_WARN;
  Counters counters;
  for (int i = 0; i < 3; ++i) {
    CmaPeer peer = stranger(EPERM);
    report_refusals(peer, counters);
  }
  ck_assert_uint_eq(test::g_log.size(), 3);
  ck_assert(error_output.writes().empty());
}

TEST(a_peer_that_ends_is_no_refusal_to_tell_a_user_of) {
  const test::CapturedStderr error_output;
  Counters counters;
  for (const int error : {ESRCH, EFAULT}) {
    CmaPeer peer = stranger(error);
    report_refusals(peer, counters);
  }
  ck_assert_uint_eq(counters.cma_refusals, 2);
  ck_assert(error_output.writes().empty());
  ck_assert(util::may_tell(util::Cause::cma));
}

}  // namespace

}  // namespace erdma::transport::shm
