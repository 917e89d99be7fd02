#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include <check.h>

// An old spelling of ck_abort_msg(), which would rename every C++ member called fail.
#undef fail

// Records the place of each assertion that holds. libcheck itself would write each place to a file,
// and would parse that file in a time quadratic in its length.
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
// simulated adapter than it began with. It also fails if an owner in the provider ended before it
// had back all that it had given out: pool objects, registrations, blocks, rings (resources.h).
namespace erdma::test {

/// Options of a suite.
struct SuiteOptions {
  /// Runs its argument, which runs the tests, in the places where they are to run. Null runs them
  /// here, once. The result is that of the program.
  int (*run)(char** argv, int (*tests)()) = nullptr;
  SFun once = nullptr;          ///< runs before the tests, in their parent
  bool (*offered)() = nullptr;  ///< false = the suite is skipped
  bool counted = true;          ///< a test fails if it leaves resources behind
};

/// Functions that run before each test of a case, in its process. If there are several, the case
/// runs once with each.
struct SetUps : std::vector<SFun> {
  SetUps(SFun set_up) : vector(1, set_up) {}
  SetUps(std::initializer_list<SFun> set_ups) : vector(set_ups) {}
};

/// Options of the tests that follow in the file or header.
struct CaseOptions {
  const char* name = "tests";
  double timeout = 60;  ///< of each test, in seconds; 0 = none
  SetUps set_up = nullptr;
  SFun tear_down = nullptr;
  bool (*offered)() = nullptr;  ///< false = the tests are left out
};

/// Names a case of a header that does not run in the file.
struct LeftOut {
  const char* case_name;
};

/// The range of _i.
struct Loop {
  Loop() = default;
  template <typename Count>
  Loop(Count count) : end(int(count)) {}
  template <typename First, typename Behind>
  Loop(First first, Behind behind) : begin(int(first)), end(int(behind)) {}
  int begin = 0, end = 1;
};

/// Registers the parts of a suite for the macros. `file` is that of the suite.
struct Registration {
  Registration(const char* file, const SuiteOptions& options);
  Registration(const char* file, const CaseOptions& options, const char* header);
  /// Gives a case from a header its set-ups.
  Registration(const char* file, const char* case_name, const SetUps& set_ups);
  Registration(const char* file, const LeftOut& left_out);
  Registration(const char* file, const TTest& test, Loop (*loop)());
  /// Lets `once` run before the tests of each suite that includes a header.
  Registration(const char* file, SFun once);
};

/// Combines the results of two runs, each 0 = passed or 77 = skipped. The result is skipped if both
/// were.
inline int of_both(int one, int other) {
  if (one == 77) return other;
  return other == 77 ? one : one || other;
}

/// Records the place that the calling test has reached. libcheck reports it if the test crashes or
/// runs out of time. A call within the same tick (4 ms) of the clock as the last record has no
/// effect.
void at(const char* file, int line);

/// Call this in a test that intentionally ends before all its operations have completed. Resources
/// of these operations are then not counted.
void leaves_work_undone();

/// Call this in a test that plays a peer which gives nothing back, or ends endpoints as if they had
/// died. Resources that owners in the provider had given out are then not counted.
void leaves_owners_short();

/// Replaces this program by another run of itself with `argv`, of which argv[0] is replaced. If
/// $ERDMA_RUNNER is set, it is an emulator that runs the program. Returns only if that fails.
void start_again(char** argv);

/// Returns a folder in memory, if there is one. On a disk, each deleted file delays files that are
/// created in the next seconds, as ext4 looks for a number that was not used lately.
const char* temporary_folder();

/// Returns the path of a file or folder there that belongs to the calling process.
std::string temporary_path(const char* name);

}  // namespace erdma::test

#define ERDMA_JOIN_(a, b) a##b
#define ERDMA_JOIN(a, b) ERDMA_JOIN_(a, b)
#define ERDMA_REGISTER \
  static const ::erdma::test::Registration ERDMA_JOIN(registration_, __COUNTER__)

// If files are compiled as one, the joined source names each (lib/join.sh). Two of them may have
// tests of the same name.
#ifdef ERDMA_JOINED
#define ERDMA_SUITE_FILE ERDMA_JOINED_FILE
#define ERDMA_OF_FILE(name) ERDMA_JOIN(name, ERDMA_JOINED_NUMBER)
// A suite in a header would belong to the first file only.
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
