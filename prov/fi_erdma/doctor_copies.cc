#include <fmt/core.h>

#include <string>

#include "fi_erdma/doctor.h"
#include "fi_erdma/pair/exchange.h"
#include "fi_erdma/pair/path_bytes.h"
#include "fi_erdma/traffic.h"
#include "fi_erdma/two_sides.h"
#include "fi_erdma/waits.h"

namespace fi_erdma {
namespace {

using pair::Channel;
using pair::Exchange;
using pair::Side;

constexpr size_t kLong = size_t(1) << 20;
constexpr int kTimedRounds = 8;

/// Exchanges long messages and RMA between two processes of this host. Returns {"messages",
/// "writes"}, in bytes per second each way, and {"cma"}, the bytes that CMA moved.
Json exchange_inside() {
  pair::Options options;
  options.provider = "erdma";
  options.limit_s = 20;
  options.sizes = {kLong};
  return run_two_sides("copies", options, [&](Side side, Channel& channel) {
    Exchange exchange(options, side, channel, FI_TAGGED | FI_RMA);
    Json json;
    for (const auto& [name, kind] :
         {std::pair("messages", Exchange::Kind::message), {"writes", Exchange::Kind::write}}) {
      exchange.compared(kind, kLong, 1);
      json[name] = exchange.speed(kind, kLong, kTimedRounds);
    }
    exchange.barrier();
    json["cma"] = bytes_of_both(channel, exchange.drive()).cma();
    exchange.barrier();
    return json;
  });
}

Json speeds_with(const char* cma, std::string& fault) {
  const Outcome outcome = try_apart({{"FI_PROVIDER", "erdma"},
                                     {"FI_ERDMA_DEVICE", "shm"},
                                     {"FI_ERDMA_SHM", ""},
                                     {"FI_ERDMA_STAT", ""},
                                     {"FI_ERDMA_CMA", cma}},
                                    exchange_inside);
  fault = trouble_of(outcome);
  return outcome.result;
}

}  // namespace

std::string measure_copies() {
  std::string fault;
  const Json copied = speeds_with("off", fault);
  if (!fault.empty()) return "what copying costs is not known: " + fault;
  // With "auto" the provider would try copies as well.
  const Json direct = speeds_with("on", fault);
  const bool known = fault.empty() && number_of(direct, "cma", 0) > 0;
  const auto text = [&](const char* name) {
    const std::string rate = rate_text(copied[name].get<double>());
    return known ? rate + " of " + rate_text(direct[name].get<double>()) : rate;
  };
  return fmt::format("copied: {} for messages and {} for RMA of 1 MiB between two processes{}",
                     text("messages"), text("writes"),
                     known ? "" : "; the speed by CMA could not be measured");
}

}  // namespace fi_erdma
