#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "fi_erdma/pair/options.h"

namespace fi_erdma {

/// The options of all subcommands. Each subcommand returns the exit status of the program.
struct Request {
  std::vector<pid_t> pids;  ///< empty = all processes of this user
  bool input = false;       ///< hang: read documents of other hosts from standard input
  bool json = false;
  bool details = false;  ///< -v

  // Options of stat.
  bool live = false;        ///< repeat until interrupted
  double interval = 0;      ///< seconds between two looks; 0: one look, or the default of an option
  unsigned count = 0;       ///< number of intervals; 0: one, or with `live` any number
  std::string by = "path";  ///< path, peer or rank
  std::string device;       ///< show this device only; empty: all
  std::string sysfs = "/sys/class/infiniband";
  bool prometheus = false;

  // Options of doctor.
  std::vector<std::string> clients;  ///< empty = all
  bool job = false;                  ///< compare the output of `doctor --json` of several hosts
  std::vector<std::string> results;  ///< files with that output; empty = standard input

  pair::Options peer;  ///< the other host to try, or to serve

  pair::BenchOptions bench;
  pair::TestOptions test;
};

/// Returns 0, or 1 if a process that was named has no statistics page.
int run_stat(const Request& request);
/// The same, and 2 if a process makes no progress.
int run_hang(const Request& request);
/// Returns 0: no trouble; 1: something is slower than it could be; 2: something does not work.
int run_doctor(const Request& request);
/// Returns 0, or 1 if libfabric or the provider is missing, or a variable is unknown.
int run_info(const Request& request);
/// Return a pair::Status.
int run_bench(const Request& request);
int run_test(const Request& request);
std::vector<std::string> test_names();

}  // namespace fi_erdma
