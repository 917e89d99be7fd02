#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transport/shm/bulk.h"
#include "transport/shm/cma.h"
#include "transport/shm/layout.h"
#include "transport/shm/unix_socket.h"
#include "transport/shm/wake_socket.h"
#include "util/socket_address.h"

/// Messages on the control socket (AF_UNIX, SOCK_SEQPACKET) of one channel. Host byte order,
/// because both ends run on the same kernel. See docs/wire-protocol.md.
namespace erdma::transport::shm {

inline constexpr uint32_t kMagic = 0x416d6465;
/// Version of this transport: of these messages, the rings and the pages of large transfers.
inline constexpr uint8_t kWireVersion = 19;
inline constexpr uint16_t kByteOrder = 0x0102;
/// A change of the layout needs a higher version and the new fingerprint here.
static_assert(layout_fingerprint() == 0x2b5de5f41582b2af, "kWireVersion must change, too");
/// Differs between builds that would misread each other's memory although the version is the same.
inline constexpr uint32_t kGeometry =
    uint32_t(layout_fingerprint() ^ layout_fingerprint() >> 32 ^ kBulkBytes);

/// Identifies the speaker. The first eight bytes are the same in every version.
struct Greeting {
  uint32_t magic = kMagic;
  uint8_t version = kWireVersion;
  uint8_t protocol_version = 0;  ///< Options::protocol_version
  uint16_t byte_order = kByteOrder;
  uint32_t geometry = kGeometry;
  uint32_t name_bytes = 0;
  std::byte name[sizeof(sockaddr_in6)] = {};
  uint32_t expedited = 0;  ///< registered for membarrier(GLOBAL_EXPEDITED)
  uint64_t nonce = 0;      ///< of the endpoint: it differs after a restart
  uint64_t boot = 0;       ///< hash of the kernel's boot id
  WakeAddress wake_socket = {};
  CmaIdentity identity = {};
};
inline util::SocketAddress name_of(const Greeting& greeting) noexcept {
  return util::SocketAddress::from_sockaddr(
      greeting.name, std::min(size_t(greeting.name_bytes), sizeof(greeting.name)));
}

/// From sender to receiver.
struct Hello {
  Greeting greeting;
};

/// From receiver to sender, with the memfd of the cold chunk (without it when refused).
struct Welcome {
  Greeting greeting;
  int32_t status = 0;  ///< negative fi_errno: refused
  uint32_t ring = 0;   ///< index in the chunk
};

enum class ControlType : uint32_t {
  promote = 1,   ///< sender: requests a hot ring, because it has large messages
  hot_ring,      ///< receiver: grants a hot ring, because the peer sends a lot; with the memfd
  demote,        ///< receiver: asks the peer to go back to the cold ring
  bulk_memory,   ///< receiver: memory for large transfers; with the memfd
  admit,         ///< either: asks the peer to name this process as its ptracer
  admit_answer,  ///< value = 0 or negative fi_errno
  bye,           ///< either: this channel is over; value = the status to report
  prove,         ///< either: asks for the value of the scratch word with the number `value`
  proof,         ///< value = the value of that word
  file,          ///< sender: shares device memory; value = its name, with the descriptor
  no_hot_ring,   ///< sender: cannot take the hot ring that was granted
  closing,       ///< either: this channel is over, because the endpoint closes
};

struct Control {
  ControlType type;
  int32_t value;
};

/// Never blocks. 0 or negative errno.
inline int send_control(const util::Fd& socket, ControlType type, int32_t value = 0,
                        const int* fd = nullptr) noexcept {
  const Control control{type, value};
  return send_message(socket.get(), &control, sizeof(control), fd, fd ? 1 : 0);
}

static_assert(sizeof(Hello) != sizeof(Welcome) && std::is_trivially_copyable_v<Hello> &&
              std::is_trivially_copyable_v<Welcome> && sizeof(Control) == 8);

}  // namespace erdma::transport::shm
