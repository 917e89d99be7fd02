#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fi_erdma {

/// What the kernel counts of a device: all processes, and what no process shows.
struct DeviceTraffic {
  std::optional<uint64_t> received_bytes, sent_bytes, received_packets, sent_packets;
};

/// Below /sys/class/infiniband, or a folder like it.
class Devices {
 public:
  explicit Devices(std::string folder) : x_folder(std::move(folder)) {}
  std::vector<std::string> names() const;  ///< sorted
  /// Of the first port. What a driver does not count is empty.
  DeviceTraffic traffic(std::string_view device) const;

 private:
  std::string x_folder;
};

/// Rates of one direction of a device since the program began to look.
class RateHistory {
 public:
  void add(uint64_t bytes, double seconds);
  double now() const { return x_now; }
  double most() const { return x_most; }
  double least() const { return x_least.value_or(0); }
  double average() const { return x_seconds > 0 ? x_bytes / x_seconds : 0; }
  double seconds() const { return x_seconds; }

 private:
  double x_now = 0, x_most = 0, x_bytes = 0, x_seconds = 0;
  std::optional<double> x_least;
};

/// The block that eadm(8) prints: bytes, rates now, at most, on average, at least, and minutes.
std::string summary_of(std::string_view device, const DeviceTraffic& total,
                       const RateHistory& received, const RateHistory& sent);

}  // namespace fi_erdma
