#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "fi_erdma/commands.h"
#include "fi_erdma/json.h"
#include "fi_erdma/pair/exchange.h"
#include "fi_erdma/pair/path_bytes.h"
#include "fi_erdma/paper.h"
#include "fi_erdma/traffic.h"
#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

using pair::BenchOptions;
using pair::Channel;
using pair::Exchange;
using pair::PathBytes;
using pair::Side;

constexpr int kRounds = 4;                        ///< rounds of each size that are checked
constexpr size_t kTimedBytes = size_t(64) << 20;  ///< bytes of each size that are timed, at most
constexpr int kMostTimed = 2000;

Exchange::Kind kind_of(const BenchOptions& options) {
  return options.operation == "read"    ? Exchange::Kind::read
         : options.operation == "write" ? Exchange::Kind::write
                                        : Exchange::Kind::message;
}

int timed_rounds(size_t size) {
  const size_t rounds = kTimedBytes / (Exchange::kWindow * std::max<size_t>(size, 1));
  return int(std::clamp<size_t>(rounds, 2, kMostTimed));
}

/// The results of one side.
struct Seen {
  /// Called as soon as a result is known, so that it is not lost however this process ends.
  void tell() const {
    if (paper) paper->write(one_line(json));
  }

  Json json;           ///< the document so far
  const Paper* paper;  ///< where the document goes; null: text is printed instead
  PathBytes own, both;
  uint64_t payload = 0;  ///< bytes of both directions
};

int rounds(const BenchOptions& options) {
  return options.iterations ? options.iterations : kRounds;
}

void measure(const BenchOptions& options, Exchange& exchange, Seen& seen) {
  Json& sizes = seen.json["sizes"];
  const Exchange::Kind kind = kind_of(options);
  for (const size_t size : options.sizes) {
    exchange.compared(kind, size, rounds(options));
    const int timed = timed_rounds(size);
    const double speed = exchange.speed(kind, size, timed);
    sizes.push_back({{"bytes", size},
                     {"operations", size_t(timed) * Exchange::kWindow},
                     {"bytes_per_second", speed}});
    if (exchange.side() == Side::client) seen.tell();
  }
}

void move_bytes(const BenchOptions& options, Side side, Channel& channel, Seen& seen) {
  const bool rma = kind_of(options) != Exchange::Kind::message;
  Exchange exchange(options, side, channel, FI_TAGGED | (rma ? FI_RMA : 0));
  const fi_info& info = exchange.endpoint().info();
  seen.json["provider"] = info.fabric_attr->prov_name;
  seen.json["device"] = info.domain_attr->name;
  seen.json["operation"] = options.operation;
  seen.json["sizes"] = Json::array();
  measure(options, exchange, seen);
  exchange.barrier();
  seen.own = pair::bytes_told();
  seen.both = bytes_of_both(channel, exchange.drive());
  seen.payload = 2 * exchange.bytes();
  seen.json["payload"] = seen.payload;
  seen.json["paths"] = seen.both.to_json();
  exchange.barrier();
}

void print_table(const Seen& seen) {
  fmt::print("{}s by {} on {}, both ways at once, every byte checked\n",
             text_of(seen.json, "operation"), text_of(seen.json, "provider"),
             text_of(seen.json, "device"));
  fmt::print("  {:>12} {:>16}\n", "SIZE", "EACH WAY");
  for (const Json& size : seen.json["sizes"])
    fmt::print("  {:>12} {:>16}\n", bytes_text(size["bytes"].get<double>()),
               rate_text(size["bytes_per_second"].get<double>()));
  seen.own.print("this side");
  seen.both.print("both sides");
}

/// Empty if the bytes took the expected path; otherwise the difference in words.
std::string trouble_of(const BenchOptions& options, const PathBytes& both, uint64_t payload) {
  const uint64_t found = both.by(options.path);
  const bool enough = found > 0 && double(found) >= double(payload) * options.share / 100;
  return enough ? std::string()
                : fmt::format("{} carried {} of {} bytes; expected was at least {:g} %",
                              options.path, found, payload, options.share);
}

int judge(const BenchOptions& options, const PathBytes& both, uint64_t payload) {
  if (options.path.empty()) return pair::kPassed;
  if (!both.told)
    pair::not_supported("--expect: this provider does not tell which way the bytes went");
  const std::string trouble = trouble_of(options, both, payload);
  if (!trouble.empty()) pair::fail("%s", trouble.c_str());
  return pair::kPassed;
}

int take_part(const BenchOptions& options, Seen& seen, Side side, Channel& channel) {
  if (side == Side::server) pair::before_end({});  // the client prints the results
  move_bytes(options, side, channel, seen);
  if (side == Side::server) return pair::kPassed;
  if (seen.paper)
    seen.tell();
  else
    print_table(seen);
  return judge(options, seen.both, seen.payload);
}

int run(const BenchOptions& options, Seen& seen) {
  const std::string task =
      fmt::format("bench {}: {} times {}", options.operation, rounds(options), sizes_text(options));
  return run_sides(task, options, [&](Side side, Channel& channel) {
    return take_part(options, seen, side, channel);
  });
}

Json told_on(const Paper& paper, const Json& otherwise) {
  const Json json = object_in(paper.read());
  return json.is_null() ? otherwise : json;
}

/// Prints the document, also if the measurement ended early or was killed.
int run_for_json(const BenchOptions& options, Seen& seen) {
  const Paper paper;
  seen.paper = &paper;
  std::string death;
  const auto body = [&] {
    // Another process notices if a side was killed.
    pair::before_end([&](pair::Status, const char* text) {
      seen.json = told_on(paper, seen.json);
      seen.json["fault"] = text;
      seen.tell();
    });
    return run(options, seen);
  };
  const int status = pair::run_alone(body, &death);
  Json json = told_on(paper, seen.json);
  if (!death.empty()) json["fault"] = death;
  print(json);
  return status;
}

}  // namespace

int run_bench(const Request& request) {
  BenchOptions options = request.bench;
  if (options.sizes.empty()) options.sizes = {8, 4096, 65536, 1 << 20, 4 << 20};
  Seen seen{document("bench"), nullptr, {}, {}, 0};
  seen.json["host"] = host_name();
  return request.json ? run_for_json(options, seen) : run(options, seen);
}

}  // namespace fi_erdma
