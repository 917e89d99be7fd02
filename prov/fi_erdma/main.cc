#include <CLI/CLI.hpp>
#include <stdio_ext.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fi_erdma/commands.h"
#include "fi_erdma/pair_options.h"

namespace {

using fi_erdma::Request;

CLI::App* add_command(CLI::App& program, const char* name, const char* help, Request& request) {
  CLI::App* const command = program.add_subcommand(name, help);
  command->add_flag("-j,--json", request.json, "Print JSON");
  return command;
}

/// Empty unless the whole word is a PID: "1.5" is not 1, nor is 4294967297.
std::optional<pid_t> pid_of(const std::string& word) {
  pid_t pid = 0;
  const char* const end = word.data() + word.size();
  const auto [last, error] = std::from_chars(word.data(), end, pid);
  return error == std::errc() && last == end && pid > 0 ? std::optional(pid) : std::nullopt;
}

/// Empty if the word is a PID.
std::string pid_fault(const std::string& word) {
  return pid_of(word) ? std::string() : word + " is no PID";
}

/// A single "-" instead of PIDs stands for standard input, if the command reads it.
void add_pids(CLI::App& command, std::vector<std::string>& words, bool or_input = false) {
  const auto check = [or_input](const std::string& word) {
    return or_input && word == "-" ? std::string() : pid_fault(word);
  };
  const char* const help =
      or_input ? "Processes (default: all of this user); -: read the output of hang --json"
               : "Processes (default: all of this user)";
  command.add_option("PID", words, help)->check(check, or_input ? "PID or -" : "PID");
}

/// Takes each process once: the collector of node_exporter refuses a file in which two rows have
/// the same labels.
void take_pids(const std::vector<std::string>& words, Request& request) {
  for (const std::string& word : words) {
    const auto pid = pid_of(word);
    if (!pid)
      request.input = true;
    else if (std::ranges::find(request.pids, *pid) == request.pids.end())
      request.pids.push_back(*pid);
  }
  if (!request.input) return;
  if (!request.pids.empty()) throw CLI::ExcludesError("-", "PID");
  if (request.json) throw CLI::ExcludesError("-", "--json");
  if (request.interval > 0) throw CLI::ExcludesError("-", "--interval");
}

CLI::Option* add_details(CLI::App& command, Request& request) {
  return command.add_flag("-v,--verbose", request.details, "Print details");
}

/// The words of PIDs on the command line.
struct Words {
  std::vector<std::string> named;  ///< as arguments
  std::vector<std::string> more;   ///< by options
};

CLI::App* add_stat(CLI::App& program, Request& request, Words& words) {
  CLI::App* const stat = add_command(
      program, "stat", "Show how many bytes each process moves, and by which path", request);
  add_pids(*stat, words.named);
  stat->add_option("-p,--pid", words.more, "The same as PID")->check(pid_fault);
  CLI::Option* const details = add_details(*stat, request);
  CLI::Option* const live = stat->add_flag(
      "-l,--live", request.live, "Repeat until CTRL-C, then print a summary of the devices");
  stat->add_option("-i,--interval", request.interval, "Show the rates over this many seconds")
      ->check(CLI::Range(0.01, 86400.0))
      ->check(fi_erdma::nan_fault);
  stat->add_option("-n,--count", request.count,
                   "Number of intervals (of a second, unless -i or -l is given)")
      ->check(CLI::PositiveNumber);
  CLI::Option* const json = stat->get_option("--json");
  CLI::Option* const device = stat->add_option(
      "-d,--device", request.device, "Show only endpoints on this device; not with --prometheus");
  CLI::Option* const by = stat->add_option("--by", request.by,
                                           "Print a row for each path of an endpoint, for each "
                                           "peer, or for each process; not with --json")
                              ->check(CLI::IsMember({"path", "peer", "rank"}))
                              ->excludes(json);
  // A sum over the endpoints on one device is no counter: it falls as an endpoint is closed.
  CLI::Option* const prometheus =
      stat->add_flag("--prometheus", request.prometheus,
                     "Print the text format of Prometheus; not with --device, --by, --json and "
                     "--verbose")
          ->excludes(device)
          ->excludes(by)
          ->excludes(json)
          ->excludes(details);
  stat->add_option("--sysfs", request.sysfs,
                   "Folder with the counters of devices, for the summary of --live")
      ->needs(live)
      ->excludes(json)
      ->excludes(prometheus);
  return stat;
}

CLI::App* add_hang(CLI::App& program, Request& request, Words& words) {
  CLI::App* const hang =
      add_command(program, "hang",
                  "Show which process waits for which, and which one makes no progress", request);
  add_pids(*hang, words.named, true);
  add_details(*hang, request);
  hang->add_option("-i,--interval", request.interval, "Seconds between the two questions (1)")
      ->check(CLI::Range(0.01, 86400.0))
      ->check(fi_erdma::nan_fault);
  return hang;
}

CLI::App* add_info(CLI::App& program, Request& request, Words& words) {
  CLI::App* const info = add_command(
      program, "info",
      "Show libraries, variables and endpoints that a program gets, or those of a process",
      request);
  add_pids(*info, words.named);
  return info;
}

CLI::App* add_doctor(CLI::App& program, Request& request) {
  CLI::App* const doctor = program.add_subcommand(
      "doctor", "Try everything that a program needs on this host, and name what does not work");
  CLI::Option* const json = doctor->add_flag("-j,--json", request.json, "Print JSON");
  CLI::Option* const job =
      doctor
          ->add_flag("--job", request.job,
                     "Read the output of doctor --json of several hosts, and print what differs")
          ->excludes(json);
  CLI::Option* const clients =
      doctor
          ->add_option("--for", request.clients,
                       "Try only what these clients ask of fi_getinfo; not with --peer")
          ->check(CLI::IsMember({"nccl", "openmpi", "mpich", "oneccl", "shmem"}));
  clients->excludes(job);
  doctor->add_option("FILE", request.results, "Files to read with --job (default: standard input)")
      ->check(CLI::ExistingFile)
      ->needs(job);
  CLI::Option* const sysfs =
      doctor->add_option("--sysfs", request.sysfs, "Folder with the devices")->excludes(job);
  fi_erdma::add_sides(*doctor, request.peer);
  doctor->get_option("--limit")->excludes(job);
  for (const char* const of_sides : {"--serve", "--peer", "--port"})
    doctor->get_option(of_sides)->excludes(job)->excludes(clients)->excludes(sysfs);
  doctor->get_option("--serve")->excludes(json);
  return doctor;
}

int run(int argc, char** argv) {
  CLI::App program("Shows and tests what the libfabric provider erdma does.", "fi_erdma");
  program.set_version_flag("-V,--version", "fi_erdma " FI_ERDMA_VERSION);
  program.require_subcommand(1);
  Request request;
  request.peer.provider = "erdma";
  request.bench.provider = request.test.provider = fi_erdma::pair::wanted_provider();
  Words words;
  const std::pair<CLI::App*, int (*)(const Request&)> commands[] = {
      {add_stat(program, request, words), fi_erdma::run_stat},
      {add_hang(program, request, words), fi_erdma::run_hang},
      {add_info(program, request, words), fi_erdma::run_info},
      {add_doctor(program, request), fi_erdma::run_doctor},
      {add_bench(program, request), fi_erdma::run_bench},
      {add_test(program, request), fi_erdma::run_test},
  };
  try {
    program.parse(argc, argv);
    words.named.insert(words.named.end(), words.more.begin(), words.more.end());
    take_pids(words.named, request);
    fi_erdma::check_tests(request.test);
  } catch (const CLI::ParseError& error) {
    const int status = program.exit(error);
    return status ? 64 : 0;  // EX_USAGE
  }
  return std::ranges::find_if(commands, [](const auto& command) { return bool(*command.first); })
      ->second(request);
}

}  // namespace

int main(int argc, char** argv) {
  // Some parents leave SIGCHLD ignored. waitpid() then cannot return the status of a child.
  std::signal(SIGCHLD, SIG_DFL);
  try {
    const int status = run(argc, argv);
    if (!std::ferror(stdout) && !std::fflush(stdout)) return status;
    std::fputs("fi_erdma: not everything could be written to the standard output\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fi_erdma: %s\n", error.what());
  }
  // Discards unwritten output; otherwise exit() would try to write it and block again.
  if (std::ferror(stdout)) __fpurge(stdout);
  return 70;  // EX_SOFTWARE
}
