#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "fi_erdma/commands.h"

namespace {

using fi_erdma::Request;

CLI::App* add_command(CLI::App& program, const char* name, const char* help, Request& request) {
  CLI::App* const command = program.add_subcommand(name, help);
  command->add_flag("-j,--json", request.json, "Print JSON");
  command->add_flag("-v,--verbose", request.details, "Print details");
  command->add_option("PID", request.pids, "Processes; without one, all of this user")
      ->check(CLI::PositiveNumber);
  return command;
}

void add_options_of_stat(CLI::App& stat, Request& request) {
  stat.add_flag("-l,--live", request.live, "Go on until CTRL-C, then sum up what devices counted");
  stat.add_option("-i,--interval", request.interval, "Seconds between two looks: shows rates")
      ->check(CLI::Range(0.01, 86400.0));
  stat.add_option("-n,--count", request.count, "Number of intervals")->check(CLI::PositiveNumber);
  stat.add_option("-d,--device", request.device, "Endpoints of this device alone");
  stat.add_option("--by", request.by, "A row for each path of an endpoint, or for each process")
      ->check(CLI::IsMember({"path", "rank"}));
  stat.add_flag("--prometheus", request.prometheus, "Print the text format of Prometheus");
  stat.add_option("--sysfs", request.sysfs, "Folder with the counters of devices");
}

int run(int argc, char** argv) {
  CLI::App program("Shows what processes do that use the libfabric provider erdma.", "fi_erdma");
  program.set_version_flag("-V,--version", "fi_erdma " FI_ERDMA_VERSION);
  program.require_subcommand(1);
  Request request;
  CLI::App* const stat =
      add_command(program, "stat", "Endpoints, their peers and what went which way", request);
  add_options_of_stat(*stat, request);
  CLI::App* const hang = add_command(program, "hang", "Which process does not go on", request);
  hang->add_option("-i,--interval", request.interval, "Seconds between two looks")
      ->check(CLI::Range(0.01, 86400.0));
  add_command(program, "info",
              "Libraries, variables and what fi_getinfo offers, or what a process uses", request);
  CLI::App* const doctor =
      program.add_subcommand("doctor", "Try what works here, with bytes, and say what does not");
  doctor->add_flag("-j,--json", request.json, "Print JSON");
  doctor->add_option("--for", request.clients, "Clients whose questions are asked")
      ->check(CLI::IsMember({"nccl", "openmpi", "mpich", "oneccl", "shmem"}));
  doctor->add_option("--sysfs", request.sysfs, "Folder with the devices");
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = program.exit(error);
    return status ? 64 : 0;  // EX_USAGE
  }
  if (*stat) return fi_erdma::run_stat(request);
  if (*hang) return fi_erdma::run_hang(request);
  if (*doctor) return fi_erdma::run_doctor(request);
  return fi_erdma::run_info(request);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fi_erdma: %s\n", error.what());
    return 70;  // EX_SOFTWARE
  }
}
