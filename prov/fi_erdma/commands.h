#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "fi_erdma/pair/options.h"

namespace fi_erdma {

/// What the subcommands are asked; each returns the status of the program.
struct Request {
  std::vector<pid_t> pids;  ///< empty = all processes of this user
  bool input = false;       ///< of hang: documents of other hosts, from standard input
  bool json = false;
  bool details = false;  ///< -v

  // Of stat.
  bool live = false;        ///< goes on until it is interrupted
  double interval = 0;      ///< seconds between two looks; 0: one look
  unsigned count = 0;       ///< of intervals; 0: one, or with `live` any number
  std::string by = "path";  ///< path, peer or rank
  std::string device;       ///< of the block at the end; empty: of all
  std::string sysfs = "/sys/class/infiniband";
  bool prometheus = false;

  // Of doctor.
  std::vector<std::string> clients;  ///< empty = all
  bool job = false;                  ///< compares what `doctor --json` wrote elsewhere

  pair::Options peer;  ///< with which bytes are exchanged, or that is served

  pair::BenchOptions bench;
  pair::TestOptions test;
};

/// 0, or 1 if a process that was named shows nothing.
int run_stat(const Request& request);
/// The same; 2 if a process does not work.
int run_hang(const Request& request);
/// 0: no trouble; 1: something is slower than need be; 2: something does not work.
int run_doctor(const Request& request);
/// 0, or 1 if there is no libfabric or no provider, or a variable is unknown.
int run_info(const Request& request);
/// A pair::Status.
int run_bench(const Request& request);
int run_test(const Request& request);
std::vector<std::string> test_names();

}  // namespace fi_erdma
