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

/// Exchanges long messages and RMA between two processes of this host. Returns {"messages",
/// "writes"}, in bytes per second each way, and {"cma"}, the bytes that CMA moved.
Json exchange_inside(double longest_seconds) {
  pair::Options options;
  options.provider = "erdma";
  options.limit_s = longest_seconds;
  options.sizes = {kLongBytes};
  return run_two_sides("copies", options, [&](Side side, Channel& channel) {
    Exchange exchange(options, side, channel, FI_TAGGED | FI_RMA);
    Json json;
    for (const auto& [name, kind] :
         {std::pair("messages", Exchange::Kind::message), {"writes", Exchange::Kind::write}}) {
      exchange.compared(kind, kLongBytes, 1);
      json[name] = exchange.speed(kind, kLongBytes, kTimedRounds);
    }
    exchange.barrier();
    json["cma"] = bytes_of_both(channel, exchange.drive()).cma();
    exchange.barrier();
    return json;
  });
}

Outcome exchange_with(const char* cma, double longest_seconds) {
  return try_apart(telling({{"FI_PROVIDER", "erdma"},
                            {"FI_ERDMA_DEVICE", "shm"},
                            {"FI_ERDMA_SHM", ""},
                            {"FI_ERDMA_CMA", cma}}),
                   [&] { return exchange_inside(longest_seconds); });
}

void report_failure(Report& report, const char* how, const Outcome& outcome) {
  report.broken("E201",
                fmt::format("messages between two processes of this host fail, {}: {}", how,
                            trouble_of(outcome)),
                outcome.said);
}

}  // namespace

std::string check_copies(Report& report, double longest_seconds) {
  const Outcome copied = exchange_with("off", longest_seconds);
  if (!trouble_of(copied).empty()) {
    report_failure(report, "copied", copied);
    return {};
  }
  // With "auto" the provider would try copies as well.
  const Outcome direct = exchange_with("on", longest_seconds);
  const std::string trouble = trouble_of(direct);
  const bool failed = !trouble.empty();
  // Other processes do not use CMA either where it is switched off.
  if (failed && !is_switched_off("FI_ERDMA_CMA")) report_failure(report, "by CMA", direct);
  const bool known = !failed && number_of(direct.result, "cma", 0) > 0;
  const auto text = [&](const char* name) {
    const std::string rate = rate_text(copied.result[name].get<double>());
    return known ? rate + " of " + rate_text(direct.result[name].get<double>()) : rate;
  };
  return fmt::format("copied: {} for messages and {} for RMA of 1 MiB between two processes{}",
                     text("messages"), text("writes"),
                     known    ? ""
                     : failed ? "; by CMA they fail: " + trouble
                              : "; the speed by CMA could not be measured");
}

}  // namespace fi_erdma
