#include "transport/verbs/resources.h"

#include <algorithm>
#include <cstring>

#include "transport/verbs/packet.h"

namespace erdma::transport::verbs {
namespace {

constexpr size_t kBounceBytes = 128 * 1024;

size_t bounce_bytes(const Device& device) noexcept {
  return std::clamp<size_t>(BlockPool::longest(device), kMinReceiveBytes, kBounceBytes);
}

Options checked(Options options, const Device& device) noexcept {
  const size_t most =
      std::clamp<size_t>(BlockPool::longest(device), kMinReceiveBytes, kPacketOverhead + (1 << 20));
  options.eager_bytes =
      std::clamp<size_t>(options.eager_bytes, 2 * kAlwaysEager, most - kPacketOverhead);
  options.max_connections =
      std::clamp(options.max_connections, 2u, std::clamp(device.limits().max_qp, 2u, 30'000u));
  options.peer_timeout_ns = std::max<uint64_t>(options.peer_timeout_ns, 1'000'000);
  return options;
}

}  // namespace

Resources::Resources(const Options& wanted, const Device& on, RegistrationCache& registrations,
                     uint32_t spare_ids)
    : device(on),
      options(checked(wanted, on)),
      cache(registrations),
      reads_in_flight(std::clamp(on.limits().max_read_in_flight, 1u, 16u)),
      queues(on),
      table(2 * options.max_connections + spare_ids),
      packet_blocks(on, OwnUse::packets, kPacketOverhead + options.eager_bytes, 32, 64),
      bounce_packets(on, OwnUse::packets, bounce_bytes(on), 8, 16),
      bounce_sinks(on, OwnUse::read_buffers, bounce_bytes(on), 8, 16) {}

/// Two regions, because every peer gets the key of the first: it admits READs only.
int Resources::open() noexcept {
  if (const int rc = queues.open()) return rc;
  int error = x_target.make(device, 64, OwnUse::heartbeat);
  if (!error) error = x_scratch.make(device, 64, OwnUse::scratch);
  if (error) {
    tell_of_locked_memory(device, 64, "heartbeats", error);
    return -error;
  }
  heartbeat = {uint64_t(x_target.bytes()), x_target.lkey(), x_target.rkey(),
               uint64_t(x_scratch.bytes()), x_scratch.lkey()};
  const Prefix ready{Kind::ready, 0, 0, 0};
  static_assert(sizeof(ready) == sizeof(uint64_t));
  std::memcpy(x_target.bytes(), &ready, sizeof(ready));
  return 0;
}

}  // namespace erdma::transport::verbs
