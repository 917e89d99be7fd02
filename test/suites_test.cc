// Tests suites as libcheck.h describes them: errors that could pass in silence must fail. Suites
// that fail are registered in a process of their own.
#include "suites.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "libcheck.h"
#include "transport/simulated_device.h"

namespace {

using namespace erdma::test;

constexpr char kFile[] = "folder/probe_test.cc", kHeader[] = "folder/cases.h";
constexpr char kHere[] = "folder/here_test.cc";

void passes(int) {}

Loop once() {
  return {};
}

const TTest kInFile{"in_file", passes, kFile, 1}, kInHeader{"in_header", passes, kHeader, 1};

/// Registers a file with a test and a header with a case, and calls `more`.
void probe(const std::function<void()>& more) {
  Registration(kFile, CaseOptions{.name = "shared"}, kHeader);
  Registration(kFile, kInHeader, once);
  more();
  Registration(kFile, CaseOptions{}, kFile);
  Registration(kFile, kInFile, once);
}

struct Outcome {
  int status;
  std::string output;
};

/// Runs `body` in a process of its own and returns its outcome.
Outcome apart(const std::function<int()>& body) {
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    const int status = body();
    std::fflush(stdout);
    _exit(status);
  }
  close(ends[1]);
  Outcome outcome{};
  char bytes[4096];
  for (ssize_t got; (got = read(ends[0], bytes, sizeof(bytes))) > 0;)
    outcome.output.append(bytes, size_t(got));
  close(ends[0]);
  ck_assert_int_eq(waitpid(child, &outcome.status, 0), child);
  ck_assert(WIFEXITED(outcome.status));
  outcome.status = WEXITSTATUS(outcome.status);
  return outcome;
}

Outcome run_probe(const std::function<void()>& more, const char* test = "") {
  return apart([&] {
    probe(more);
    return run_suite("probe", test, nullptr);
  });
}

/// Runs this program once more with `argument`.
Outcome run_again(const char* argument) {
  return apart([argument] {
    char* argv[] = {const_cast<char*>("suites_test"), const_cast<char*>(argument), nullptr};
    start_again(argv);
    return 126;
  });
}

bool has(const Outcome& outcome, const char* text) {
  return outcome.output.find(text) != std::string::npos;
}

void with_set_ups() {
  Registration(kFile, "shared", SetUps{nullptr, nullptr});
}

/// Each of the two runs has one test.
const Registration g_both(kHere, SuiteOptions{.run = here_and_on_devices});
const Registration g_first(kHere, CaseOptions{.offered = not_on_devices}, kHere);
const Registration g_here(kHere, TTest{"here", passes, kHere, 1}, once);
const Registration g_second(kHere, CaseOptions{.offered = [] { return g_on_devices; }}, kHere);
const Registration g_there(kHere, TTest{"there", passes, kHere, 1}, once);

}  // namespace

TEST(cases_of_a_header_run_with_each_set_up) {
  const Outcome outcome = run_probe(with_set_ups);
  ck_assert_int_eq(outcome.status, 0);
  ck_assert(has(outcome, "Checks: 3"));
}

TEST(case_of_a_header_without_set_ups_fails_the_suite) {
  const Outcome outcome = run_probe([] {});
  ck_assert_int_eq(outcome.status, 1);
  ck_assert(has(outcome, "\"shared\""));
}

TEST(case_of_a_header_can_be_left_out) {
  const Outcome outcome = run_probe([] { Registration(kFile, LeftOut{"shared"}); });
  ck_assert_int_eq(outcome.status, 0);
  ck_assert(has(outcome, "Checks: 1"));
}

TEST(case_that_is_left_out_has_no_set_ups) {
  const Outcome outcome = run_probe([] {
    with_set_ups();
    Registration(kFile, LeftOut{"shared"});
  });
  ck_assert_int_eq(outcome.status, 1);
  ck_assert(has(outcome, "\"shared\""));
}

TEST(names_of_no_case_fail_the_suite, 2) {
  const Outcome outcome = run_probe([i = _i] {
    with_set_ups();
    if (i == 0) Registration(kFile, "shred", SetUps{nullptr});
    if (i == 1) Registration(kFile, LeftOut{"shred"});
  });
  ck_assert_int_eq(outcome.status, 1);
  ck_assert(has(outcome, "\"shred\""));
}

TEST(filter_that_leaves_no_test_is_a_failure) {
  setenv("CK_RUN_CASE", "none", 1);
  const Outcome outcome = run_probe(with_set_ups);
  ck_assert_int_eq(outcome.status, 1);
  ck_assert(has(outcome, "no test ran"));
}

/// The first run has tests, the second none.
TEST(each_run_needs_a_test) {
  const Outcome outcome = run_probe([] {
    with_set_ups();
    const auto twice = [](char**, int (*tests)()) {
      if (tests()) return 10;
      setenv("CK_RUN_CASE", "none", 1);
      return tests();
    };
    Registration(kFile, SuiteOptions{.run = twice});
  });
  ck_assert_int_eq(outcome.status, 1);
}

TEST(one_test_can_be_named) {
  ck_assert(has(run_probe(with_set_ups, "in_file"), "Checks: 1"));
  const Outcome unknown = run_probe(with_set_ups, "nowhere");
  ck_assert_int_eq(unknown.status, 1);
  ck_assert(has(unknown, "no such test"));
}

TEST(test_that_is_not_offered_is_skipped) {
  const Outcome outcome = run_probe(
      [] {
        with_set_ups();
        Registration(kFile, CaseOptions{.offered = [] { return false; }}, kFile);
        Registration(kFile, TTest{"withheld", passes, kFile, 1}, once);
      },
      "withheld");
  ck_assert_int_eq(outcome.status, 77);
}

TEST(test_of_one_of_two_runs_can_be_named) {
  ck_assert_int_eq(run_again("here:here").status, 0);
  ck_assert_int_eq(run_again("here:there").status, 0);
  ck_assert_int_eq(run_again("here:nowhere").status, 1);
}

TEST(program_of_another_machine_starts_again_by_its_runner) {
  setenv("ERDMA_RUNNER", "echo", 1);
  const Outcome outcome = run_again("here:here");
  ck_assert_int_eq(outcome.status, 0);
  ck_assert(has(outcome, "suites_test here:here\n"));
}

TEST(run_is_skipped_only_if_both_were) {
  ck_assert_int_eq(of_both(77, 77), 77);
  ck_assert_int_eq(of_both(77, 0), 0);
  ck_assert_int_eq(of_both(0, 77), 0);
  ck_assert_int_eq(of_both(0, 0), 0);
  for (const int other : {0, 1, 77}) {
    ck_assert_int_eq(of_both(1, other), 1);
    ck_assert_int_eq(of_both(other, 1), 1);
  }
}
