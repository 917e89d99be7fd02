#pragma once

#include <CLI/CLI.hpp>

#include "fi_erdma/commands.h"

namespace fi_erdma {

/// Add `bench` and `test` with their options to the program.
CLI::App* add_bench(CLI::App& program, Request& request);
CLI::App* add_test(CLI::App& program, Request& request);
/// Throws CLI::ParseError where options contradict each other.
void check_tests(const pair::TestOptions& options);

/// Where the other side is: of these and of `doctor`.
void add_sides(CLI::App& command, pair::Options& options);

}  // namespace fi_erdma
