#include "fi_erdma/devices.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "fi_erdma/traffic.h"

namespace fi_erdma {
namespace {

/// The names that drivers give a counter (both forms of erdma, rxe, others), and the bytes that one
/// unit of it stands for.
struct Name {
  const char* path;
  uint64_t worth;
};
constexpr Name kReceivedBytes[] = {{"hw_counters/hw_rx_bytes_cnt", 1},
                                   {"hw_counters/rx_bytes_cnt", 1},
                                   {"counters/port_rcv_data", 4}};
constexpr Name kSentBytes[] = {{"hw_counters/hw_tx_bytes_cnt", 1},
                               {"hw_counters/tx_bytes_cnt", 1},
                               {"counters/port_xmit_data", 4}};
constexpr Name kReceivedPackets[] = {{"hw_counters/hw_rx_packets_cnt", 1},
                                     {"hw_counters/rx_packets_cnt", 1},
                                     {"hw_counters/rcvd_pkts", 1},
                                     {"counters/port_rcv_packets", 1}};
constexpr Name kSentPackets[] = {{"hw_counters/hw_tx_packets_cnt", 1},
                                 {"hw_counters/tx_packets_cnt", 1},
                                 {"hw_counters/sent_pkts", 1},
                                 {"counters/port_xmit_packets", 1}};

template <size_t kCount>
std::optional<uint64_t> first_of(const std::string& port, const Name (&names)[kCount]) {
  for (const Name& name : names) {
    std::ifstream file(port + name.path);
    uint64_t number;
    if (file >> number) return number * name.worth;
  }
  return std::nullopt;
}

std::string packets_text(std::optional<uint64_t> packets) {
  return packets ? std::to_string(*packets) : "-";
}

}  // namespace

std::vector<std::string> Devices::names() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(x_folder, error))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

DeviceTraffic Devices::traffic(std::string_view device) const {
  const std::string port = fmt::format("{}/{}/ports/1/", x_folder, device);
  return {first_of(port, kReceivedBytes), first_of(port, kSentBytes),
          first_of(port, kReceivedPackets), first_of(port, kSentPackets)};
}

void RateHistory::look(std::optional<uint64_t> counter, double seconds) {
  x_since += seconds;
  if (!counter) return;
  if (x_known) add(growth(x_known, counter), x_since);
  x_known = counter;
  x_since = 0;
}

void RateHistory::add(uint64_t bytes, double seconds) {
  if (seconds <= 0) return;
  x_now = double(bytes) / seconds;
  x_most = std::max(x_most, x_now);
  x_least = std::min(x_least.value_or(x_now), x_now);
  x_bytes += double(bytes);
  x_seconds += seconds;
}

std::string summary_of(std::string_view device, const DeviceTraffic& total,
                       const RateHistory& received, const RateHistory& sent) {
  std::string text = fmt::format("\n {} / traffic statistics\n\n{:>25}{:>18}\n {:-<46}\n", device,
                                 "rx      ", "|       tx", "");
  const auto row = [&](const char* name, const std::string& rx, const std::string& tx) {
    text += fmt::format(" {:<10}{:>14} |{:>18}\n", name, rx, tx);
  };
  row("bytes", total_text(total.received_bytes), total_text(total.sent_bytes));
  row("packets", packets_text(total.received_packets), packets_text(total.sent_packets));
  row("now", rate_text(received.now()), rate_text(sent.now()));
  row("max", rate_text(received.most()), rate_text(sent.most()));
  row("average", rate_text(received.average()), rate_text(sent.average()));
  row("min", rate_text(received.least()), rate_text(sent.least()));
  return text + fmt::format(" {:<10}{:>14.2f} minutes\n", "time",
                            std::max(received.seconds(), sent.seconds()) / 60);
}

}  // namespace fi_erdma
