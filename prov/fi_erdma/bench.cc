#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "fi_erdma/commands.h"
#include "fi_erdma/json.h"
#include "fi_erdma/pair/exchange.h"
#include "fi_erdma/pair/path_bytes.h"
#include "fi_erdma/traffic.h"
#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

using pair::BenchOptions;
using pair::Channel;
using pair::Exchange;
using pair::PathBytes;
using pair::Side;

constexpr int kRounds = 4;                        ///< that are checked, of each size
constexpr size_t kTimedBytes = size_t(64) << 20;  ///< of each size, at most
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

/// What one side saw.
struct Seen {
  Json json;  ///< a document, as far as it came
  PathBytes own, both;
  uint64_t payload = 0;  ///< of both ways
};

int rounds(const BenchOptions& options) {
  return options.iterations ? options.iterations : kRounds;
}

void measure(const BenchOptions& options, Exchange& exchange, Json& sizes) {
  const Exchange::Kind kind = kind_of(options);
  for (const size_t size : options.sizes) {
    exchange.compared(kind, size, rounds(options));
    const int timed = timed_rounds(size);
    const double speed = exchange.speed(kind, size, timed);
    sizes.push_back({{"bytes", size},
                     {"operations", size_t(timed) * Exchange::kWindow},
                     {"bytes_per_second", speed}});
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
  measure(options, exchange, seen.json["sizes"]);
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

/// Empty, or how the bytes went another way than they should.
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

int take_part(const BenchOptions& options, bool as_json, Seen& seen, Side side, Channel& channel) {
  if (side == Side::server) pair::before_end({});  // the client tells
  move_bytes(options, side, channel, seen);
  if (side == Side::server) return pair::kPassed;
  if (!as_json) print_table(seen);
  const int status = judge(options, seen.both, seen.payload);
  if (as_json) print(seen.json);
  return status;
}

}  // namespace

int run_bench(const Request& request) {
  BenchOptions options = request.bench;
  if (options.sizes.empty()) options.sizes = {8, 4096, 65536, 1 << 20, 4 << 20};
  Seen seen{document("bench"), {}, {}, 0};
  seen.json["host"] = host_name();
  // A document also of what ended early.
  if (request.json)
    pair::before_end([&seen](pair::Status, const char* text) {
      seen.json["fault"] = text;
      print(seen.json);
    });
  const std::string task =
      fmt::format("bench {}: {} times {}", options.operation, rounds(options), sizes_text(options));
  return run_sides(task, options, [&](Side side, Channel& channel) {
    return take_part(options, request.json, seen, side, channel);
  });
}

}  // namespace fi_erdma
