#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fake/captured_log.h"
#include "fake/captured_stderr.h"
#include "libcheck.h"
#include "util/fd.h"

using namespace erdma::test;
using erdma::util::Cause;
using erdma::util::NoticeLevel;
using erdma::util::set_notice_level;
using erdma::util::tell;

namespace {

/// Runs in the forked child of each test: sets up the log as if no variable were set.
void set_up() {
  g_log_level = -1;
  g_log.clear();
}

std::string prefix() {
  char host[65] = "";
  gethostname(host, sizeof(host) - 1);
  const std::string name = host;
  return "erdma: " + name.substr(0, name.find('.')) + "[" + std::to_string(getpid()) + "]: ";
}

void assert_text(const std::string& text, const std::string& expected) {
  ck_assert_msg(text == expected, "'%s' instead of '%s'", text.c_str(), expected.c_str());
}

/// Replaces standard error while this object lives.
struct OwnStderr {
  OwnStderr() { close(STDERR_FILENO); }
  ~OwnStderr() {
    dup2(before, STDERR_FILENO);
    close(before);
  }
  OwnStderr(const OwnStderr&) = delete;
  OwnStderr& operator=(const OwnStderr&) = delete;
  const int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
};

// A notice goes to exactly one place.

TEST_CASE(.set_up = set_up);

TEST(a_notice_is_one_write_with_host_and_pid_where_the_log_is_silent) {
  const CapturedStderr error_output;
  ERDMA_NOTICE(cma, EP_DATA, "refused: %s", "EPERM");
  assert_text(error_output.only_write(), prefix() + "refused: EPERM [W401]\n");
  ck_assert_uint_eq(g_log.size(), 0);
}

TEST(a_notice_goes_to_the_log_alone_if_that_takes_warnings) {
  const CapturedStderr error_output;
  for (const int level : {FI_LOG_WARN, FI_LOG_INFO}) {
    g_log_level = level;
    g_log.clear();
    ERDMA_NOTICE(cma, EP_DATA, "refused: %s", "EPERM");
    ck_assert_uint_eq(g_log.size(), 1);
    ck_assert_int_eq(g_log[0].level, FI_LOG_WARN);
    assert_text(g_log[0].text, "refused: EPERM [W401]\n");
    assert_text(error_output.only_write(), "");
  }
}

TEST(off_writes_nothing_and_leaves_the_log_alone) {
  const CapturedStderr error_output;
  set_notice_level(NoticeLevel::off);
  ERDMA_NOTICE(cma, EP_DATA, "refused");
  ERDMA_ANNOUNCE(EP_CTRL, "endpoint\n");
  assert_text(error_output.only_write(), "");
  g_log_level = FI_LOG_WARN;
  ERDMA_NOTICE(cma, EP_DATA, "refused");
  ck_assert_uint_eq(g_log.size(), 1);
}

TEST(an_announcement_needs_the_level_info_of_either) {
  const CapturedStderr error_output;
  ERDMA_ANNOUNCE(EP_CTRL, "endpoint\n");
  assert_text(error_output.only_write(), "");
  set_notice_level(NoticeLevel::info);
  ERDMA_ANNOUNCE(EP_CTRL, "endpoint\n");
  assert_text(error_output.only_write(), prefix() + "endpoint\n");
  g_log_level = FI_LOG_WARN;  // the level does not show the notice
  ERDMA_ANNOUNCE(EP_CTRL, "endpoint\n");
  assert_text(error_output.only_write(), prefix() + "endpoint\n");
  ck_assert_uint_eq(g_log.size(), 0);
  g_log_level = FI_LOG_INFO;
  ERDMA_ANNOUNCE(EP_CTRL, "endpoint\n");
  assert_text(error_output.only_write(), "");
  ck_assert_uint_eq(g_log.size(), 1);
}

TEST(arguments_are_made_only_for_a_line_that_is_written) {
  const CapturedStderr error_output;
  unsigned made = 0;
  const auto make = [&] { return ++made; };
  ERDMA_NOTICE(cma, EP_DATA, "refused %u", make());
  ck_assert_uint_eq(made, 1);
  ERDMA_NOTICE(cma, EP_DATA, "refused %u", make());  // the cause has its line already
  ERDMA_ANNOUNCE(EP_CTRL, "endpoint %u\n", make());
  set_notice_level(NoticeLevel::off);
  ERDMA_NOTICE(zero_copy, MR, "copied %u", make());
  ck_assert_uint_eq(made, 1);
}

// How often a notice is written.

TEST(a_cause_is_told_once_whoever_it_concerns) {
  const CapturedStderr error_output;
  for (int peer = 0; peer < 100; ++peer) tell(Cause::cma, "peer %d refuses", peer);
  assert_text(error_output.only_write(), prefix() + "peer 0 refuses [W401]\n");
  tell(Cause::zero_copy, "another cause");
  assert_text(error_output.only_write(), prefix() + "another cause [W203]\n");
}

TEST(lost_peers_are_told_up_to_a_bound_that_is_told) {
  const CapturedStderr error_output;
  for (int peer = 0; peer < 100; ++peer) tell(Cause::peer_lost, "peer %d is lost\n", peer);
  const std::vector<std::string> writes = error_output.writes();
  ck_assert_uint_eq(writes.size(), 3);
  assert_text(writes[1], prefix() + "peer 1 is lost [E206]\n");
  assert_text(writes[2], prefix() + "peer 2 is lost [E206] (no more of these are shown)\n");
}

TEST(the_same_text_is_told_once) {
  const CapturedStderr error_output;
  for (int i = 0; i < 3; ++i) tell(Cause::peer_lost, "peer A is lost");
  tell(Cause::peer_lost, "peer B is lost");
  ck_assert_uint_eq(error_output.writes().size(), 2);
}

TEST(threads_that_meet_one_cause_write_one_line) {
  const CapturedStderr error_output;
  std::atomic<bool> go = false;
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      while (!go) std::this_thread::yield();
      tell(Cause::cma, "peer %d refuses", i);
    });
  go = true;
  for (std::thread& thread : threads) thread.join();
  ck_assert_uint_eq(error_output.writes().size(), 1);
}

// Peers can cause warnings without limit.

TEST(a_warning_that_is_repeated_does_not_fill_the_log) {
  g_log_level = FI_LOG_WARN;
  const erdma::util::SystemClock clock;
  const uint64_t start = clock.now();
  for (int i = 0; i < 100'000; ++i) ERDMA_WARN(EP_DATA, "peer %d breaks a rule\n", i);
  const uint64_t seconds = (clock.now() - start) / 1'000'000'000 + 1;
  const size_t lines = g_log.size();
  ck_assert_uint_ge(lines, 10);
  ck_assert_uint_le(lines, 10 + 2 * seconds);  // each has one that gives the number of omitted ones
  ERDMA_WARN(EP_DATA, "another place\n");
  ck_assert_uint_eq(g_log.size(), lines + 1);
}

TEST(warnings_that_were_left_out_are_counted) {
  erdma::util::LineLimit limit;
  unsigned left_out = 0;
  constexpr uint64_t kSecond = 1'000'000'000;
  for (int i = 0; i < 10; ++i) ck_assert(limit.allow(5 * kSecond, left_out));
  for (int i = 0; i < 7; ++i) ck_assert(!limit.allow(5 * kSecond + uint64_t(i), left_out));
  ck_assert_uint_eq(left_out, 0);
  ck_assert(limit.allow(6 * kSecond, left_out));
  ck_assert_uint_eq(left_out, 7);
  ck_assert(!limit.allow(6 * kSecond, left_out));
}

TEST(a_late_reading_of_the_clock_permits_no_warning) {
  erdma::util::LineLimit limit;
  unsigned left_out = 0;
  constexpr uint64_t kSecond = 1'000'000'000;
  while (limit.allow(6 * kSecond, left_out)) {
  }
  for (int i = 0; i < 100; ++i) ck_assert(!limit.allow(5 * kSecond, left_out));
  ck_assert(!limit.allow(6 * kSecond, left_out));
  ck_assert(limit.allow(7 * kSecond, left_out));
  ck_assert_uint_eq(left_out, 102);
}

// The format of a line.

TEST(each_cause_has_a_code_of_its_own) {
  std::set<std::string> codes;
  for (size_t cause = 0; cause < size_t(Cause::count); ++cause)
    codes.insert(erdma::util::code_of(Cause(cause)));
  ck_assert_uint_eq(codes.size(), size_t(Cause::count));
  ck_assert_str_eq(erdma::util::code_of(Cause::host_mismatch), "E216");  // the last of the table
}

TEST(a_line_has_one_end_whatever_it_quotes) {
  const CapturedStderr error_output;
  tell(Cause::variable, "the name is %s", "a\nb\033[2J\tc\x7f");
  assert_text(error_output.only_write(), prefix() + "the name is a?b?[2J?c? [E105]\n");
}

TEST(a_long_line_is_cut_and_still_one_write) {
  const CapturedStderr error_output;
  const std::string long_text(5000, 'x');
  tell(Cause::cma, "%s", long_text.c_str());
  const std::string line = error_output.only_write();
  ck_assert_uint_le(line.size(), 1024);
  ck_assert_uint_gt(line.size(), 900);
  ck_assert(line.ends_with("x [W401]\n"));
}

TEST(the_last_line_of_a_cause_fits_however_long_it_is) {
  const CapturedStderr error_output;
  const std::string long_text(5000, 'x');
  for (int peer = 0; peer < 3; ++peer) tell(Cause::peer_lost, "%d%s", peer, long_text.c_str());
  const std::vector<std::string> writes = error_output.writes();
  ck_assert_uint_eq(writes.size(), 3);
  ck_assert_uint_le(writes[2].size(), 1024);
  ck_assert(writes[2].ends_with("x [E206] (no more of these are shown)\n"));
}

// Side effects that a notice must not have on the process.

TEST(errno_stays) {
  const CapturedStderr error_output;
  errno = ENOLINK;
  ERDMA_NOTICE(cma, EP_DATA, "refused");
  set_notice_level(NoticeLevel::info);
  ERDMA_ANNOUNCE(EP_CTRL, "endpoint\n");
  ck_assert_int_eq(errno, ENOLINK);
  ck_assert_uint_eq(error_output.writes().size(), 2);
}

TEST(a_pipe_that_nobody_reads_kills_nobody) {
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  close(ends[0]);
  signal(SIGPIPE, SIG_DFL);
  const OwnStderr own;
  dup2(ends[1], STDERR_FILENO);
  close(ends[1]);
  tell(Cause::cma, "refused");
  sigset_t pending;
  sigpending(&pending);
  ck_assert(!sigismember(&pending, SIGPIPE));
}

/// The reader of standard error may be waiting for this process.
TEST(a_pipe_that_is_full_holds_nobody_up) {
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  ck_assert_int_eq(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  const std::string block(4096, 'x');
  while (write(ends[1], block.data(), block.size()) > 0) {
  }
  ck_assert_int_eq(fcntl(ends[1], F_SETFL, 0), 0);
  const OwnStderr own;
  dup2(ends[1], STDERR_FILENO);
  close(ends[1]);
  tell(Cause::cma, "refused");  // tell() that waits would exceed the time limit
  ck_assert(erdma::util::may_tell(Cause::cma));
  close(ends[0]);
}

TEST(without_standard_error_nothing_is_written_and_the_line_is_not_used_up) {
  const OwnStderr own;
  tell(Cause::cma, "refused");
  ck_assert(erdma::util::may_tell(Cause::cma));
}

/// The process began without standard error, so the next file that it opens gets that number.
TEST(a_file_that_has_the_number_of_standard_error_gets_no_line, 2) {
  erdma::util::Fd owned;
  std::string said;
  {
    const OwnStderr none;
    if (_i == 0) erdma::util::look_at_standard_error();
    const int file = memfd_create("data", MFD_CLOEXEC);
    ck_assert_int_eq(file, STDERR_FILENO);
    if (_i == 1) owned.reset(file);  // the provider's own
    ERDMA_NOTICE(cma, EP_DATA, "refused");
    set_notice_level(NoticeLevel::info);
    erdma::util::announce("ready");
    char byte;
    if (pread(file, &byte, 1, 0) != 0) said = "a line";
    if (_i == 1) (void)owned.release();
    close(file);
  }
  assert_text(said, "");
  erdma::util::look_at_standard_error();
  const CapturedStderr error_output;
  ERDMA_NOTICE(cma, EP_DATA, "refused");
  assert_text(error_output.only_write(), prefix() + "refused [W401]\n");
}

TEST(a_forked_child_tells_its_own_pid) {
  const CapturedStderr error_output;
  const pid_t child = fork();
  if (child == 0) {
    tell(Cause::cma, "refused");
    _exit(0);
  }
  ck_assert_int_eq(waitpid(child, nullptr, 0), child);
  ck_assert(contains(error_output.only_write(), ("[" + std::to_string(child) + "]").c_str()));
}

}  // namespace
