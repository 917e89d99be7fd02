#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fi_erdma {

/// What the kernel counts for a device: the traffic of all processes.
struct DeviceTraffic {
  std::optional<uint64_t> received_bytes, sent_bytes, received_packets, sent_packets;
};

/// The devices in /sys/class/infiniband, or in a folder of the same form.
class Devices {
 public:
  explicit Devices(std::string folder) : x_folder(std::move(folder)) {}
  std::vector<std::string> names() const;  ///< sorted
  /// Counters of the first port. Those that the driver does not have are empty.
  DeviceTraffic traffic(std::string_view device) const;

 private:
  std::string x_folder;
};

/// Rates of one direction of a device since the program began to look.
class RateHistory {
 public:
  /// What the counter of bytes was `seconds` after the last look; empty if it could not be read.
  /// The next rate is then that of the time since it was known.
  void look(std::optional<uint64_t> counter, double seconds);
  void add(uint64_t bytes, double seconds);
  double now() const { return x_now; }
  double most() const { return x_most; }
  double least() const { return x_least.value_or(0); }
  double average() const { return x_seconds > 0 ? x_bytes / x_seconds : 0; }
  double seconds() const { return x_seconds; }

 private:
  double x_now = 0, x_most = 0, x_bytes = 0, x_seconds = 0;
  std::optional<double> x_least;
  std::optional<uint64_t> x_known;  ///< the counter when it was read last
  double x_since = 0;               ///< seconds since then
};

/// A summary in the form of eadm(8): bytes, the current, highest, average and lowest rate, and
/// minutes.
std::string summary_of(std::string_view device, const DeviceTraffic& total,
                       const RateHistory& received, const RateHistory& sent);

}  // namespace fi_erdma
