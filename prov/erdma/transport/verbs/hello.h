#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/verbs/connector.h"
#include "transport/verbs/job_key.h"
#include "util/fingerprint.h"
#include "util/socket_address.h"

/// What the two sides of a new connection say to each other before any packet: the bytes, and how
/// they are checked. The active side sends a hello; the passive side answers with a welcome or a
/// refusal.
namespace erdma::transport::verbs {

inline constexpr uint32_t kHelloMagic = 0x61445265;  // "eRDa" on x86-64
/// Version of this transport: of the handshake and of its packets (packet.h). The first six bytes
/// of a hello never change.
inline constexpr uint8_t kWireVersion = 5;

enum class HelloKind : uint8_t {
  hello = 1,
  welcome = 2,
  refusal = 3,
  confirm = 4,
  bye = 5,
  challenge = 6,  ///< also a refusal: try again with `argument` as the answer
};

/// The beginning of all messages; a refusal, a confirm and a bye consist of nothing else. In the
/// sender's byte order: the magic shows it, and another order is refused.
struct HelloPrefix {
  uint32_t magic;
  uint8_t version;
  uint8_t kind;       ///< HelloKind; bit 7: `ip` of the hello is IPv6
  uint16_t argument;  ///< hello, welcome: credits; challenge: not 0; refusal: Refusal, and
                      ///< in the upper byte the protocol_version of the side that refuses
};
static_assert(sizeof(HelloPrefix) == 8);

/// 80 bytes: on iWARP rdma_cm carries up to 255, and it is used for no other devices.
struct HelloBytes {
  HelloPrefix prefix;
  uint16_t receive_units;  ///< in units of 8 bytes
  uint16_t port;
  uint32_t serial;  ///< counts the sender's hellos and welcomes, to order those that cross
  uint8_t ip[16];
  uint64_t nonce;
  uint64_t heartbeat_address;
  uint32_t heartbeat_rkey;
  uint16_t answer;           ///< hello: to the previous challenge; 0 = none
  uint8_t protocol_version;  ///< Options::protocol_version
  uint8_t reserved;
  uint64_t resumes;  ///< the connection that the new one continues (session.h); 0 = none
  /// Covers all above, the path, and the name of the side that is asked, or that side's hello.
  Mac mac;
};
static_assert(sizeof(HelloBytes) == 80);
/// A change of the handshake needs a higher kWireVersion and the new fingerprint here.
static_assert(util::fingerprint(
                  {kWireVersion, offsetof(HelloPrefix, version), offsetof(HelloPrefix, kind),
                   offsetof(HelloPrefix, argument), offsetof(HelloBytes, receive_units),
                   offsetof(HelloBytes, port), offsetof(HelloBytes, serial),
                   offsetof(HelloBytes, ip), offsetof(HelloBytes, nonce),
                   offsetof(HelloBytes, heartbeat_address), offsetof(HelloBytes, heartbeat_rkey),
                   offsetof(HelloBytes, answer), offsetof(HelloBytes, protocol_version),
                   offsetof(HelloBytes, resumes), offsetof(HelloBytes, mac)}) == 0x457711ae745f6949,
              "kWireVersion must change, too");

/// Bytes of the back end that both sides must know and that the MAC covers: GID and queue pair
/// number on ib, nothing on iWARP.
using Path = std::array<std::byte, 32>;

/// Why the passive side refuses. The values are sent.
enum class Refusal : uint16_t {
  none = 0,
  version = 1,   ///< of the transport or the protocol, or byte order
  garbage = 2,   ///< not a hello, or a hello with contradictions
  key = 3,       ///< another job key, or another endpoint's name
  use_mine = 4,  ///< both connect at once, and the refusing side's attempt stands
  stale = 5,     ///< overtaken by a later attempt of the same peer
  busy = 6,      ///< out of resources: try again
  closing = 7,   ///< the endpoint is being closed
  replay = 8,    ///< never sent: HelloKind::challenge has this meaning
};
const char* refusal_text(Refusal reason) noexcept;

struct Hello {
  HelloKind kind = HelloKind::hello;
  Terms terms;
  uint32_t serial = 0;
  uint16_t answer = 0;
  Mac mac{};  ///< set by decode(); encode() makes its own
};

/// `context` binds the bytes to one conversation: the name that is asked (name_bytes()), or for a
/// welcome the MAC of the hello that it answers.
HelloBytes encode(const Hello& hello, const JobKey& key, const Path& path,
                  JobKey::Bytes context) noexcept;
HelloPrefix encode_prefix(HelloKind kind, Refusal reason = Refusal::none,
                          uint8_t protocol_version = 0) noexcept;

/// Decodes untrusted bytes from a peer. Refusal::none = `hello` is filled in. The caller must check
/// its name and its protocol_version.
Refusal decode(std::span<const std::byte> bytes, HelloKind expected, const JobKey& key,
               const Path& path, JobKey::Bytes context, Hello& hello) noexcept;
/// The answer that a challenge asks for.
uint16_t decode_challenge(std::span<const std::byte> bytes) noexcept;
/// The reason in a refusal, or replay for a challenge; Refusal::none = these bytes are not a
/// refusal of this provider.
Refusal decode_refusal(std::span<const std::byte> bytes) noexcept;
/// Describes a message that has, or reports, Refusal::version. `ours`: this side's version of the
/// protocol.
std::string version_text(std::span<const std::byte> bytes, uint8_t ours);
/// Returns why no message can begin with these bytes, which may be a part of its header.
Refusal check_prefix(std::span<const std::byte> bytes) noexcept;

/// A name as it is compared and signed: family, IP, port. Without the scope, which is local to a
/// host.
using NameBytes = std::array<std::byte, 19>;
NameBytes name_bytes(const util::SocketAddress& name) noexcept;

}  // namespace erdma::transport::verbs
