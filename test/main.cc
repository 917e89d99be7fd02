// The main() of all programs of tests. Arguments are suites, each with or without one of its tests
// (suite:test). Without arguments, all suites run, each in a process of its own. --list prints the
// names.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "libcheck.h"
#include "suites.h"

namespace {

int run_one(const std::string& name, char** argv) {
  const size_t colon = name.find(':');
  const std::string test = colon == name.npos ? "" : name.substr(colon + 1);
  return erdma::test::run_suite(name.substr(0, colon), test, argv);
}

/// Runs a suite in a process of its own, as it may change the environment of others.
int run_apart(std::string name, char* program) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    char* argv[] = {program, name.data(), nullptr};
    erdma::test::start_again(argv);
    _exit(126);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
  return WEXITSTATUS(status);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> names(argv + 1, argv + argc);
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const std::string& name : erdma::test::suites()) std::puts(name.c_str());
    return 0;
  }
  if (names.empty()) names = erdma::test::suites();
  if (names.size() == 1) return run_one(names[0], argv);
  int result = 77;
  for (const std::string& name : names)
    result = erdma::test::of_both(result, run_apart(name, argv[0]));
  return result;
}
