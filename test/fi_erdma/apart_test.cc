#include "fi_erdma/apart.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "libcheck.h"

using fi_erdma::Json;
using fi_erdma::Outcome;
using fi_erdma::try_apart;

namespace {

void check_fault(const Outcome& outcome, const char* why) {
  ck_assert_msg(outcome.fault.find(why) != std::string::npos, "%s", outcome.fault.c_str());
  ck_assert(outcome.result.is_null());
}

TEST(what_a_trial_finds_and_prints_comes_back) {
  const Outcome outcome = try_apart({{"SET", "value"}}, [] {
    std::fprintf(stderr, "one\ntwo\n");
    std::printf("three\n");
    return Json{{"set", getenv("SET")}};
  });
  ck_assert_str_eq(outcome.fault.c_str(), "");
  const auto set = outcome.result["set"].get<std::string>();
  ck_assert_str_eq(set.c_str(), "value");
  ck_assert(outcome.said == std::vector<std::string>({"one", "two", "three"}));
  ck_assert_ptr_null(getenv("SET"));
}

TEST(a_trial_that_aborts_throws_or_ends_has_a_fault) {
  // A library that libfabric loads (libinfinipath) may have made an exit of it.
  const auto aborts = []() -> Json { signal(SIGABRT, SIG_DFL), abort(); };
  check_fault(try_apart({}, aborts), "ended by a signal");
  const Outcome thrown = try_apart({}, []() -> Json { throw std::runtime_error("the reason"); });
  check_fault(thrown, "it failed");
  ck_assert(thrown.said == std::vector<std::string>({"the reason"}));
  check_fault(try_apart({}, []() -> Json { _exit(0); }), "it told nothing");
}

TEST(a_trial_whose_result_is_no_object_has_a_fault) {
  check_fault(try_apart({}, [] { return Json(17); }), "it told nothing");
}

// Where SIGCHLD is ignored, the kernel keeps no status: a trial that aborted looked fine.
TEST(a_trial_of_which_no_status_is_kept_has_a_fault) {
  signal(SIGCHLD, SIG_IGN);
  check_fault(try_apart({}, []() -> Json { abort(); }), "can't be known");
  signal(SIGCHLD, SIG_DFL);
}

// Its end of a pipe would hold up who waits for the end of the pipe.
TEST(what_a_trial_leaves_running_holds_up_nobody) {
  const Outcome outcome = try_apart({}, [] {
    const pid_t left = fork();
    if (left == 0)
      for (;;) pause();
    return Json{{"left", left}};
  });
  ck_assert_str_eq(outcome.fault.c_str(), "");
  kill(outcome.result["left"].get<pid_t>(), SIGKILL);
}

TEST(what_a_trial_prints_is_no_part_of_the_report) {
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  const int before = dup(STDOUT_FILENO);
  dup2(ends[1], STDOUT_FILENO);
  const Outcome outcome = try_apart({}, [] {
    std::puts("a library says this");
    std::fflush(stdout);
    return Json::object();
  });
  dup2(before, STDOUT_FILENO);
  close(before);
  close(ends[1]);
  char byte;
  ck_assert_int_eq(read(ends[0], &byte, 1), 0);
  close(ends[0]);
  ck_assert(outcome.said == std::vector<std::string>({"a library says this"}));
}

}  // namespace
