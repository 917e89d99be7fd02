#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include <check.h>

// An old spelling of ck_abort_msg(), which would rename every C++ member called fail.
#undef fail

// Each assertion that holds marks its place. libcheck itself would write each to a file, and it
// parses that file in a time quadratic in its length.
#define _mark_point(file, line) ::erdma::test::at(file, line)

// A file of tests is a suite, named like the file without _test.cc. The tests register themselves:
//
//   SUITE(.run = on_simulated_devices);   // optional, once: where and whether the suite runs
//   TEST_CASE(.timeout = 120);            // optional: how the tests that follow are run
//   TEST(a_name) { ... }                  // a process of its own
//   TEST(a_name, 4) { ... }               // four times, _i counting from 0
//   TEST(a_name, 1, 7) { ... }            // _i from 1 to 6
//   SET_UPS("case", a, b);                // the tests of a header run, with a() and with b()
//   LEFT_OUT("case");                     // or they do not, on purpose
//
// Each test fails if it ends with more descriptors, threads, shared memory or objects of the
// simulated adapter than it began with, or if an owner in the provider ended before it had all back
// that it had lent: pool objects, registrations, blocks, rings (resources.h).
namespace erdma::test {

/// Of a suite.
struct SuiteOptions {
  /// Calls its argument, which runs the tests, wherever they are to run; null = here, once. Its
  /// result is that of the program.
  int (*run)(char** argv, int (*tests)()) = nullptr;
  SFun once = nullptr;          ///< in the parent of all tests, before them
  bool (*offered)() = nullptr;  ///< false = the suite is skipped
  bool counted = true;          ///< what a test leaves behind fails it
};

/// Runs before each test of a case, in its process; of several, the case runs once with each.
struct SetUps : std::vector<SFun> {
  SetUps(SFun set_up) : vector(1, set_up) {}
  SetUps(std::initializer_list<SFun> set_ups) : vector(set_ups) {}
};

/// Of the tests which follow in the file, or header.
struct CaseOptions {
  const char* name = "tests";
  double timeout = 60;  ///< of each, in seconds; 0 = none
  SetUps set_up = nullptr;
  SFun tear_down = nullptr;
  bool (*offered)() = nullptr;  ///< false = they are left out
};

/// Names a case of a header that does not run in the file.
struct LeftOut {
  const char* case_name;
};

/// The values of _i.
struct Loop {
  Loop() = default;
  template <typename Count>
  Loop(Count count) : end(int(count)) {}
  template <typename First, typename Behind>
  Loop(First first, Behind behind) : begin(int(first)), end(int(behind)) {}
  int begin = 0, end = 1;
};

/// What the macros are made of; `file` is that of the suite.
struct Registration {
  Registration(const char* file, const SuiteOptions& options);
  Registration(const char* file, const CaseOptions& options, const char* header);
  /// Of a case from a header: its set-ups here.
  Registration(const char* file, const char* case_name, const SetUps& set_ups);
  Registration(const char* file, const LeftOut& left_out);
  Registration(const char* file, const TTest& test, Loop (*loop)());
  /// Of a header: runs before the tests of each suite that includes it.
  Registration(const char* file, SFun once);
};

/// The result of two runs, each 0 = passed or 77 = skipped: skipped if both were.
inline int of_both(int one, int other) {
  if (one == 77) return other;
  return other == 77 ? one : one || other;
}

/// Records the place that the calling test has reached, which libcheck tells of a test that crashes
/// or runs out of time. Does nothing within the same tick (4 ms) of the clock as the last record.
void at(const char* file, int line);

/// By a test that ends, on purpose, before all its operations have: what these hold is not counted.
void leaves_work_undone();

/// By a test that plays a peer which gives nothing back, or ends endpoints as if they had died:
/// what owners in the provider had lent then is not counted.
void leaves_owners_short();

/// This program becomes another run of itself with `argv`: by $ERDMA_RUNNER, if that is set, an
/// emulator for a machine that this one is not. argv[0] is replaced. Returns if that fails.
void start_again(char** argv);

/// In memory, if there is such a place. On a disk each file that is deleted delays those which are
/// made in the next seconds: ext4 looks for a number that nobody had lately.
const char* temporary_folder();

/// For a file or folder there that belongs to the calling process.
std::string temporary_path(const char* name);

}  // namespace erdma::test

#define ERDMA_JOIN_(a, b) a##b
#define ERDMA_JOIN(a, b) ERDMA_JOIN_(a, b)
#define ERDMA_REGISTER \
  static const ::erdma::test::Registration ERDMA_JOIN(registration_, __COUNTER__)

// Of files that are compiled as one, the joined source names each (test/lib/join.sh); two of them
// may have tests of the same name.
#ifdef ERDMA_JOINED
#define ERDMA_SUITE_FILE ERDMA_JOINED_FILE
#define ERDMA_OF_FILE(name) ERDMA_JOIN(name, ERDMA_JOINED_NUMBER)
// What a header has of a suite would be that of the first file alone.
#define ERDMA_IN_SOURCE static_assert(__FILE__[sizeof(__FILE__) - 2] == 'c');
#else
#define ERDMA_SUITE_FILE __BASE_FILE__
#define ERDMA_OF_FILE(name) name
#define ERDMA_IN_SOURCE
#endif

#define SUITE(...) \
  ERDMA_IN_SOURCE ERDMA_REGISTER(ERDMA_SUITE_FILE, ::erdma::test::SuiteOptions{__VA_ARGS__})
#define TEST_CASE(...)                                                                      \
  ERDMA_IN_SOURCE ERDMA_REGISTER(ERDMA_SUITE_FILE, ::erdma::test::CaseOptions{__VA_ARGS__}, \
                                 __FILE__)
#define SET_UPS(case_name, ...) \
  ERDMA_REGISTER(ERDMA_SUITE_FILE, case_name, ::erdma::test::SetUps{__VA_ARGS__})
#define LEFT_OUT(case_name) ERDMA_REGISTER(ERDMA_SUITE_FILE, ::erdma::test::LeftOut{case_name})
#define TEST(test_name, ...)                                                      \
  ERDMA_IN_SOURCE static void ERDMA_OF_FILE(test_name)(int);                      \
  ERDMA_REGISTER(ERDMA_SUITE_FILE,                                                \
                 TTest{#test_name, ERDMA_OF_FILE(test_name), __FILE__, __LINE__}, \
                 [] { return ::erdma::test::Loop(__VA_ARGS__); });                \
  static void ERDMA_OF_FILE(test_name)([[maybe_unused]] int _i)
