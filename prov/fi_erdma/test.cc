#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "fi_erdma/commands.h"
#include "fi_erdma/json.h"
#include "fi_erdma/pair/sides.h"
#include "fi_erdma/pair/tests.h"
#include "fi_erdma/paper.h"

namespace fi_erdma {
namespace {

using pair::TestOptions;

struct Test {
  const char* name;
  int (*run)(TestOptions options);
  bool alone = false;  ///< it has one side
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

/// Adds what it printed to `tests`.
int run_quietly(const Test& test, const TestOptions& options, Json& tests) {
  const Paper said;
  const int status = pair::run_alone([&] {
    said.take_output();
    return test.run(options);
  });
  tests.push_back({{"name", test.name}, {"grade", word(status)}, {"said", said.lines()}});
  return status;
}

/// In a process of its own: what one does to its process, or how it ends, is no matter of the next.
int run_aloud(const Test& test, const TestOptions& options) {
  const int status = pair::run_alone([&] { return test.run(options); });
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
    const int status = request.json ? run_quietly(test, request.test, json["tests"])
                                    : run_aloud(test, request.test);
    worst = std::max(worst, status);
    // Nobody came, as a rule: whoever comes later would meet another test.
    if (request.test.serve && status == pair::kNotTried) break;
  }
  if (request.json) print(json);
  return worst;
}

}  // namespace fi_erdma
