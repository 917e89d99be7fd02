#include "suites.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <set>

#include "libcheck.h"
#include "resources.h"

namespace erdma::test {
namespace {

struct Test {
  TTest test;
  Loop (*loop)();
};

struct Case {
  CaseOptions options;
  std::string file;  ///< source file of the suite
  std::vector<Test> tests;
};

struct Registered {
  SuiteOptions options;
  std::vector<SFun> once;
  std::vector<Case> cases;
  std::map<std::string, SetUps> set_ups;
  std::set<std::string> left_out;
};

/// Returns all suites by name.
std::map<std::string, Registered>& all() {
  static std::map<std::string, Registered> suites;
  return suites;
}

Registered& suite_of(const std::string& file) {
  const size_t begin = file.rfind('/') + 1;
  return all()[file.substr(begin, file.rfind("_test.") - begin)];
}

const Registered* g_running;
std::string g_running_name, g_only;

bool wanted(const Test& test) {
  return g_only.empty() || g_only == test.test.name;
}

/// Fails on errors that would pass in silence: a case of a header that neither runs nor is left
/// out, and a name that no case has.
bool names_fit() {
  std::set<std::string> cases;
  bool fit = true;
  const auto complain = [&fit](const std::string& name, const char* what) {
    std::printf("case \"%s\" %s\n", name.c_str(), what);
    fit = false;
  };
  for (const Case& described : g_running->cases) {
    const std::string name = described.options.name;
    cases.insert(name);
    if (!described.file.ends_with(".h")) continue;
    const bool runs = g_running->set_ups.contains(name);
    if (runs == g_running->left_out.contains(name))
      complain(name, runs ? "has SET_UPS and is LEFT_OUT" : "has neither SET_UPS nor LEFT_OUT");
  }
  for (const auto& [name, set_ups] : g_running->set_ups)
    if (!cases.contains(name)) complain(name, "has SET_UPS and does not exist");
  for (const std::string& name : g_running->left_out)
    if (!cases.contains(name)) complain(name, "is LEFT_OUT and does not exist");
  return fit;
}

TCase* make_case(const Case& described, SFun set_up) {
  TCase* tcase = tcase_create(described.options.name);
  if (g_running->options.counted) tcase_add_checked_fixture(tcase, begin_counting, end_counting);
  tcase_add_checked_fixture(tcase, set_up, described.options.tear_down);
  tcase_set_timeout(tcase, described.options.timeout);
  for (const Test& test : described.tests) {
    if (!wanted(test)) continue;
    const Loop range = test.loop();
    tcase_add_loop_test(tcase, &test.test, range.begin, range.end);
  }
  return tcase;
}

bool has_wanted(const Case& described) {
  return !g_running->left_out.contains(described.options.name) &&
         std::any_of(described.tests.begin(), described.tests.end(), wanted);
}

bool is_offered(const Case& described) {
  return has_wanted(described) && (!described.options.offered || described.options.offered());
}

int run(Suite* suite) {
  SRunner* runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  const int ran = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  if (ran == 0) std::puts("no test ran");
  return ran == 0 || failed ? 1 : 0;
}

int run_here() {
  if (g_running->options.offered && !g_running->options.offered()) return 77;
  if (!names_fit()) return 1;
  for (const SFun once : g_running->once) once();
  const std::vector<Case>& cases = g_running->cases;
  if (std::none_of(cases.begin(), cases.end(), has_wanted)) {
    std::puts("no such test");
    return 1;
  }
  if (std::none_of(cases.begin(), cases.end(), is_offered)) return 77;
  Suite* suite = suite_create(g_running_name.c_str());
  for (const Case& described : cases) {
    if (!is_offered(described)) continue;
    const auto given = g_running->set_ups.find(described.options.name);
    for (const SFun set_up :
         given == g_running->set_ups.end() ? described.options.set_up : given->second)
      suite_add_tcase(suite, make_case(described, set_up));
  }
  return run(suite);
}

}  // namespace

void at(const char* file, int line) {
  static std::atomic<long> last;  // assertions may also be in threads of a test
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  if (last.exchange(now.tv_nsec, std::memory_order_relaxed) != now.tv_nsec)
    (_mark_point)(file, line);
}

Registration::Registration(const char* file, const SuiteOptions& options) {
  suite_of(file).options = options;
  if (options.once) suite_of(file).once.push_back(options.once);
}

Registration::Registration(const char* file, const CaseOptions& options, const char* header) {
  suite_of(file).cases.push_back({options, header, {}});
}

Registration::Registration(const char* file, const char* case_name, const SetUps& set_ups) {
  suite_of(file).set_ups.insert_or_assign(case_name, set_ups);
}

Registration::Registration(const char* file, const LeftOut& left_out) {
  suite_of(file).left_out.insert(left_out.case_name);
}

Registration::Registration(const char* file, const TTest& test, Loop (*loop)()) {
  std::vector<Case>& cases = suite_of(file).cases;
  if (cases.empty() || cases.back().file != test.file) cases.push_back({{}, test.file, {}});
  cases.back().tests.push_back({test, loop});
}

Registration::Registration(const char* file, SFun once) {
  suite_of(file).once.push_back(once);
}

std::vector<std::string> suites() {
  std::vector<std::string> names;
  for (const auto& [name, suite] : all()) names.push_back(name);
  return names;
}

void start_again(char** argv) {
  constexpr char kSelf[] = "/proc/self/exe";
  const char* const runner = std::getenv("ERDMA_RUNNER");
  if (!runner || !*runner) {
    execv(kSelf, argv);
    return;
  }
  char self[PATH_MAX] = "";
  if (readlink(kSelf, self, sizeof(self) - 1) <= 0) return;
  std::vector<char*> words{const_cast<char*>(runner), self};
  while (*++argv) words.push_back(*argv);
  words.push_back(nullptr);
  execvp(runner, words.data());
}

const char* temporary_folder() {
  return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
}

std::string temporary_path(const char* name) {
  return std::string(temporary_folder()) + "/" + name + "-" + std::to_string(getpid());
}

int run_suite(const std::string& suite, const std::string& test, char** argv) {
  const auto found = all().find(suite);
  if (found == all().end()) {
    std::printf("%s is none of the suites of this program:\n", suite.c_str());
    for (const std::string& name : suites()) std::puts(name.c_str());
    return 1;
  }
  g_running = &found->second;
  g_running_name = suite;
  g_only = test;
  setenv("TEMP", temporary_folder(), 0);  // libcheck makes a file for each test
  const auto run = g_running->options.run;
  return run ? run(argv, run_here) : run_here();
}

}  // namespace erdma::test
