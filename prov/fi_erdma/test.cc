#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "fi_erdma/commands.h"
#include "fi_erdma/json.h"
#include "fi_erdma/pair/meeting.h"
#include "fi_erdma/pair/sides.h"
#include "fi_erdma/pair/tests.h"
#include "fi_erdma/paper.h"

namespace fi_erdma {
namespace {

using pair::TestOptions;

struct Test {
  const char* name;
  int (*run)(TestOptions options);
  bool alone = false;  ///< the test has only one side
};
constexpr Test kTests[] = {{"refused-cma", pair::test_refused_cma},
                           {"local-read", pair::test_local_read, true},
                           {"peer-death", pair::test_peer_death}};

bool is_wanted(const Test& test, const TestOptions& options) {
  if (!options.names.empty())
    return std::ranges::find(options.names, test.name) != options.names.end();
  return !test.alone || (options.peer.empty() && !options.serve);
}

const char* word(int status) {
  return status == pair::kPassed ? "ok" : status == pair::kNotTried ? "SKIP" : "NO";
}

/// Sets `unmet` if the test needs another side and did not find it.
int run(const Test& test, const TestOptions& options, const Paper& unmet) {
  pair::before_end([&unmet](pair::Status, const char*) {
    const pair::Meeting meeting = pair::meeting();
    if (meeting != pair::Meeting::none && meeting != pair::Meeting::met) unmet.write("unmet");
  });
  return test.run(options);
}

/// Adds the output of the test to `tests`.
int run_quietly(const Test& test, const TestOptions& options, const Paper& unmet, Json& tests) {
  const Paper said;
  const int status = pair::run_alone([&] {
    said.take_output();
    return run(test, options, unmet);
  });
  tests.push_back({{"name", test.name}, {"grade", word(status)}, {"said", said.lines()}});
  return status;
}

/// Runs the test in a process of its own, so that no test affects the next.
int run_aloud(const Test& test, const TestOptions& options, const Paper& unmet) {
  const int status = pair::run_alone([&] { return run(test, options, unmet); });
  fmt::print("  {:<5} {}\n", word(status), test.name);
  std::fflush(stdout);
  return status;
}

}  // namespace

std::vector<std::string> test_names() {
  std::vector<std::string> names;
  for (const Test& test : kTests) names.push_back(test.name);
  return names;
}

int run_test(const Request& request) {
  Json json = document("test");
  json["host"] = host_name();
  json["tests"] = Json::array();
  int worst = pair::kPassed;
  for (const Test& test : kTests) {
    if (!is_wanted(test, request.test)) continue;
    const Paper unmet;
    const int status = request.json ? run_quietly(test, request.test, unmet, json["tests"])
                                    : run_aloud(test, request.test, unmet);
    worst = std::max(worst, status);
    // A client that connects later would meet another test.
    if (!unmet.read().empty()) break;
  }
  if (request.json) print(json);
  return worst;
}

}  // namespace fi_erdma
