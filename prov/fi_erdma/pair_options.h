#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "fi_erdma/commands.h"

namespace fi_erdma {

/// Add the subcommands `bench` and `test` with their options to the program.
CLI::App* add_bench(CLI::App& program, Request& request);
CLI::App* add_test(CLI::App& program, Request& request);
/// Throws CLI::ParseError if options contradict each other.
void check_tests(const pair::TestOptions& options);

/// Empty unless the word is "nan", which CLI::Range lets pass: it is neither below nor above.
std::string nan_fault(const std::string& word);

/// Adds the options for the other side, which `bench`, `test` and `doctor` share.
void add_sides(CLI::App& command, pair::Options& options);

}  // namespace fi_erdma
