#include "suites.h"

#include <cstdio>
#include <map>

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
  std::string file;  ///< that it stands in
  std::vector<Test> tests;
};

struct Registered {
  SuiteOptions options;
  std::vector<SFun> once;
  std::vector<Case> cases;
  std::map<std::string, SetUps> set_ups;
};

/// By name.
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
bool g_found = false;  ///< what is to run

TCase* make_case(const Case& described, SFun set_up) {
  TCase* tcase = tcase_create(described.options.name);
  if (g_running->options.counted) tcase_add_checked_fixture(tcase, begin_counting, end_counting);
  tcase_add_checked_fixture(tcase, set_up, described.options.tear_down);
  tcase_set_timeout(tcase, described.options.timeout);
  for (const auto& [test, loop] : described.tests) {
    if (!g_only.empty() && g_only != test.name) continue;
    g_found = true;
    const Loop range = loop();
    tcase_add_loop_test(tcase, &test, range.begin, range.end);
  }
  return tcase;
}

int run_here() {
  if (g_running->options.offered && !g_running->options.offered()) return 77;
  for (const SFun once : g_running->once) once();
  Suite* suite = suite_create(g_running_name.c_str());
  for (const Case& described : g_running->cases) {
    if (described.options.offered && !described.options.offered()) continue;
    const auto given = g_running->set_ups.find(described.options.name);
    if (given == g_running->set_ups.end() && described.file.ends_with(".h")) continue;
    for (const SFun set_up :
         given == g_running->set_ups.end() ? described.options.set_up : given->second)
      suite_add_tcase(suite, make_case(described, set_up));
  }
  SRunner* runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  const bool passed = srunner_ntests_failed(runner) == 0;
  srunner_free(runner);
  if (!g_found) std::puts("no such test");
  return passed && g_found ? 0 : 1;
}

}  // namespace

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
  const auto run = g_running->options.run;
  return run ? run(argv, run_here) : run_here();
}

}  // namespace erdma::test
