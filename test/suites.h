#pragma once

#include <string>
#include <vector>

// The suites of this program (libcheck.h), for its main().
namespace erdma::test {

std::vector<std::string> suites();

/// Runs a suite, or one of its tests ("" = all) in this process, or where it wants to be run. 0 =
/// passed, 77 = skipped.
int run_suite(const std::string& suite, const std::string& test, char** argv);

}  // namespace erdma::test
