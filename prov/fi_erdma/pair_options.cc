#include "fi_erdma/pair_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace fi_erdma {
namespace {

constexpr size_t kMostReads = 1'000'000;  ///< reads in flight

/// Empty if the whole word is a port number.
std::string port_fault(const std::string& word) {
  uint16_t port = 0;
  const char* const end = word.data() + word.size();
  const auto [last, error] = std::from_chars(word.data(), end, port);
  return error == std::errc() && last == end && port > 0 ? "" : word + " is no TCP port";
}

/// Sizes accept K, M and G. `all` is a set of sizes up to the largest that every test supports.
void add_sizes(CLI::App& command, std::vector<size_t>& sizes) {
  constexpr size_t kLargest = size_t(1) << 20;
  constexpr size_t kMost = 1000;  // each side sends all sizes to the other in one message
  const auto take = [&sizes](const std::vector<std::string>& lists) {
    std::istringstream words(lists.front());
    for (std::string word; std::getline(words, word, ',');) {
      size_t size = 0;
      if (word == "all")
        sizes = pair::all_sizes(kLargest);
      else if (pair::parse_size(word.c_str(), size))
        sizes.push_back(size);
      else
        return false;
    }
    return !sizes.empty() && sizes.size() <= kMost;
  };
  command
      .add_option(
          "-S,--size", CLI::callback_t(take),
          "Sizes in bytes, with K, M or G; all: 0 to 1M in powers of two, with their neighbours")
      ->type_name("SIZE,...");
}

void add_common(CLI::App& command, pair::Options& options) {
  add_sides(command, options);
  command.add_option("-p,--provider", options.provider,
                     "Provider of libfabric (FI_PROVIDER, or erdma)");
  command.add_option("-d,--domain", options.domain, "Name of the domain");
  command.add_option("-s,--source", options.source, "Address of the NIC to use");
  command.add_option("-I,--iterations", options.iterations, "How often each size is checked")
      ->check(CLI::PositiveNumber);
  add_sizes(command, options.sizes);
  command.add_option("-D,--memory", options.memory, "host (default) or cuda")
      ->check(CLI::IsMember({"host", "cuda"}));
  command.add_flag("--nic-only", options.nic_only,
                   "No shared memory (FI_OPT_SHARED_MEMORY_PERMITTED is false)");
  command.add_flag("--spoil", options.spoil, "Change one byte: the command must then fail");
}

}  // namespace

std::string nan_fault(const std::string& word) {
  return std::isnan(std::strtod(word.c_str(), nullptr)) ? word + " is no number" : "";
}

void add_sides(CLI::App& command, pair::Options& options) {
  CLI::Option* const serve =
      command.add_flag("--serve", options.serve, "Wait for the other side, and serve it once");
  CLI::Option* const peer =
      command.add_option("--peer", options.peer, "Host on which the other side waits")
          ->type_name("HOST")
          ->excludes(serve);
  CLI::Option* const port = command
                                .add_option("-P,--port", options.port,
                                            "TCP port over which the sides find each other (9228)")
                                ->check(port_fault);
  command.callback([=] {
    if (*port && !*serve && !*peer) throw CLI::RequiresError("--port", "--serve or --peer");
  });
  command.add_option("-T,--limit", options.limit_s, "Longest time of each wait, in seconds (60)")
      ->check(CLI::Range(0.1, 86400.0))
      ->check(nan_fault);
}

void check_tests(const pair::TestOptions& options) {
  const bool apart = options.serve || !options.peer.empty();
  if (apart && std::ranges::find(options.names, "local-read") != options.names.end())
    throw CLI::ExcludesError("local-read", options.serve ? "--serve" : "--peer");
  if (options.into == "device" && options.memory == "host")
    throw CLI::RequiresError("--into device", "--memory cuda");
}

CLI::App* add_bench(CLI::App& program, Request& request) {
  pair::BenchOptions& options = request.bench;
  CLI::App* const bench = program.add_subcommand(
      "bench", "Measure the speed between two processes, and show which path the bytes took");
  CLI::Option* const json = bench->add_flag("-j,--json", request.json, "Print JSON");
  add_common(*bench, options);
  bench->get_option("--serve")->excludes(json);  // the other side prints the results
  bench->add_option("--operation", options.operation, "message (default), read or write")
      ->check(CLI::IsMember({"message", "read", "write"}));
  CLI::Option* const expect =
      bench
          ->add_option(
              "--expect", options.path,
              "Fail unless the bytes took this path: nic, shm, or within shared memory rings, "
              "cma, copy")
          ->check(CLI::IsMember({"nic", "shm", "rings", "cma", "copy"}));
  bench->add_option("--share", options.share, "Percent of the bytes that must take it (100)")
      ->check(CLI::Range(0.0, 100.0))
      ->check(nan_fault)
      ->needs(expect);
  return bench;
}

CLI::App* add_test(CLI::App& program, Request& request) {
  pair::TestOptions& options = request.test;
  CLI::App* const test = program.add_subcommand(
      "test", "Test rare situations: refused CMA, reads of own memory, the death of a peer");
  test->add_flag("-j,--json", request.json, "Print JSON");
  test->add_option("NAME", options.names, "Tests (default: all)")
      ->check(CLI::IsMember(test_names()));
  add_common(*test, options);
  test->add_option("--refuse", options.calls, "refused-cma: calls to refuse (readv,writev)")
      ->check(CLI::IsMember({"readv", "writev", "readv,writev", "none"}));
  test->add_option("--side", options.side, "refused-cma: side: server, client or both (default)")
      ->check(CLI::IsMember({"server", "client", "both"}));
  test->add_option("--errno", options.error, "refused-cma: EPERM (default) or ENOSYS")
      ->check(CLI::IsMember({"EPERM", "ENOSYS"}));
  test->add_option("--burst", options.burst, "local-read: reads of 8 bytes in flight (3000)")
      ->check(CLI::Range(size_t(0), kMostReads));
  test->add_option("--into", options.into,
                   "local-read: memory to read to with -D cuda: host (default) or device")
      ->check(CLI::IsMember({"host", "device"}));
  test->add_option("--limit-ms", options.limit_ms,
                   "peer-death: time within which all operations must end (15000)")
      ->check(CLI::PositiveNumber)
      ->check(nan_fault);
  test->add_option("--signal", options.signal,
                   "peer-death: signal: KILL (default), or STOP, with which the test must fail")
      ->check(CLI::IsMember({"KILL", "STOP"}));
  return test;
}

}  // namespace fi_erdma
