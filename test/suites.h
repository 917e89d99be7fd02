#pragma once

#include <string>
#include <vector>

// Functions for main() to run the suites of this program (libcheck.h).
namespace erdma::test {

std::vector<std::string> suites();

/// Runs a suite, or one of its tests ("" = all), in this process or where its options say. Returns
/// 0 if it passed, 77 if it was skipped.
int run_suite(const std::string& suite, const std::string& test, char** argv);

}  // namespace erdma::test
