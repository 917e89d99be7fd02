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

/// What the two sides of a new connection say to each other before any packet: the bytes, and what
/// can be wrong with them. The active side says hello, the passive side welcome or why not.
namespace erdma::transport::verbs {

inline constexpr uint32_t kHelloMagic = 0x61445265;  // "eRDa" on x86-64
/// Of this transport: of the handshake and of its packets (packet.h). The first six bytes of a
/// hello never change.
inline constexpr uint8_t kWireVersion = 5;

enum class HelloKind : uint8_t {
  hello = 1,
  welcome = 2,
  refusal = 3,
  confirm = 4,
  bye = 5,
  challenge = 6,  ///< a refusal, too: come again with `argument` as answer
};

/// Also of a refusal, a confirm and a bye, which have no more than that. In the byte order of the
/// sender: the magic shows it, and another order is turned away.
struct HelloPrefix {
  uint32_t magic;
  uint8_t version;
  uint8_t kind;       ///< HelloKind; bit 7: `ip` of the hello is IPv6
  uint16_t argument;  ///< hello, welcome: credits; challenge: not 0; refusal: Refusal, and
                      ///< in the upper byte the protocol_version of the side that refuses
};
static_assert(sizeof(HelloPrefix) == 8);

/// 80 bytes: rdma_cm carries up to 255 on iWARP, and no other device is asked by rdma_cm.
struct HelloBytes {
  HelloPrefix prefix;
  uint16_t receive_units;  ///< of 8 bytes
  uint16_t port;
  uint32_t serial;  ///< counts the sender's hellos and welcomes: orders those that cross
  uint8_t ip[16];
  uint64_t nonce;
  uint64_t heartbeat_address;
  uint32_t heartbeat_rkey;
  uint16_t answer;           ///< hello: to the challenge before; 0 = none
  uint8_t protocol_version;  ///< Options::protocol_version
  uint8_t reserved;
  uint64_t resumes;  ///< the connection that the new one continues (session.h); 0 = none
  Mac mac;           ///< of all above, the path, and the name of the one who is asked, or its hello
};
static_assert(sizeof(HelloBytes) == 80);
/// Whoever changes the handshake counts kWireVersion up, and puts the new fingerprint here.
static_assert(util::fingerprint(
                  {kWireVersion, offsetof(HelloPrefix, version), offsetof(HelloPrefix, kind),
                   offsetof(HelloPrefix, argument), offsetof(HelloBytes, receive_units),
                   offsetof(HelloBytes, port), offsetof(HelloBytes, serial),
                   offsetof(HelloBytes, ip), offsetof(HelloBytes, nonce),
                   offsetof(HelloBytes, heartbeat_address), offsetof(HelloBytes, heartbeat_rkey),
                   offsetof(HelloBytes, answer), offsetof(HelloBytes, protocol_version),
                   offsetof(HelloBytes, resumes), offsetof(HelloBytes, mac)}) == 0x457711ae745f6949,
              "kWireVersion must change, too");

/// Bytes of the back end's own that both sides must know and that the MAC covers: GID and queue
/// pair number on ib, nothing on iWARP.
using Path = std::array<std::byte, 32>;

/// Why the passive side says no. Values are on the wire.
enum class Refusal : uint16_t {
  none = 0,
  version = 1,   ///< of the transport or the protocol, or byte order
  garbage = 2,   ///< not a hello, or one that contradicts itself
  key = 3,       ///< another job key, or a name that is not ours
  use_mine = 4,  ///< both connect at once, and the refusing side's attempt stands
  stale = 5,     ///< overtaken by a later attempt of yours
  busy = 6,      ///< out of resources: come again
  closing = 7,   ///< the endpoint is being closed
  replay = 8,    ///< never sent: HelloKind::challenge says so
};
const char* refusal_text(Refusal reason) noexcept;

struct Hello {
  HelloKind kind = HelloKind::hello;
  Terms terms;
  uint32_t serial = 0;
  uint16_t answer = 0;
  Mac mac{};  ///< as decoded; encode() makes its own
};

/// `context` binds the bytes to one conversation: the name that is asked (name_bytes()), or for a
/// welcome the MAC of the hello that it answers.
HelloBytes encode(const Hello& hello, const JobKey& key, const Path& path,
                  JobKey::Bytes context) noexcept;
HelloPrefix encode_prefix(HelloKind kind, Refusal reason = Refusal::none,
                          uint8_t protocol_version = 0) noexcept;

/// Decodes what came from a peer: anything at all. Refusal::none = `hello` is filled in. Its name
/// and its protocol_version are not checked against anything.
Refusal decode(std::span<const std::byte> bytes, HelloKind expected, const JobKey& key,
               const Path& path, JobKey::Bytes context, Hello& hello) noexcept;
/// What a challenge asks for.
uint16_t decode_challenge(std::span<const std::byte> bytes) noexcept;
/// The reason in a refusal, replay in a challenge; Refusal::none = these bytes are no refusal of
/// ours.
Refusal decode_refusal(std::span<const std::byte> bytes) noexcept;
/// What is wrong with a message that is, or says, Refusal::version; `ours`: the protocol's.
std::string version_text(std::span<const std::byte> bytes, uint8_t ours);
/// Whether a message may go on like this; looks at as many bytes as there are.
Refusal check_prefix(std::span<const std::byte> bytes) noexcept;

/// A name as compared and signed: family, IP, port; no scope, which only its own host knows.
using NameBytes = std::array<std::byte, 19>;
NameBytes name_bytes(const util::SocketAddress& name) noexcept;

}  // namespace erdma::transport::verbs
