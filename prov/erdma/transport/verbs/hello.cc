#include "transport/verbs/hello.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "transport/version.h"

namespace erdma::transport::verbs {
namespace {

constexpr uint8_t kIpv6 = 0x80;
constexpr uint32_t kReceiveUnit = 8;
constexpr unsigned kVersionShift = 8;  ///< in the argument of a refusal
constexpr unsigned kReasonMask = 0xff;

JobKey::Bytes signed_part(const HelloBytes& bytes) noexcept {
  return {reinterpret_cast<const std::byte*>(&bytes), offsetof(HelloBytes, mac)};
}

void put_name(const util::SocketAddress& name, HelloBytes& bytes) noexcept {
  const std::span<const std::byte> ip = name.ip();
  bytes.port = htons(name.port());
  if (name.family() == AF_INET6) bytes.prefix.kind |= kIpv6;
  std::memcpy(bytes.ip, ip.data(), ip.size());
}

util::SocketAddress get_name(const HelloBytes& bytes) noexcept {
  return util::SocketAddress::from_ip(bytes.prefix.kind & kIpv6 ? AF_INET6 : AF_INET, bytes.ip,
                                      ntohs(bytes.port));
}

}  // namespace

const char* refusal_text(Refusal reason) noexcept {
  static constexpr const char* kTexts[] = {
      "none given",
      "another version of the wire protocol",
      "it did not understand the request",
      ("another job key, or an address that is not its own: FI_ERDMA_JOB_KEY must be the same in "
       "all processes of a job"),
      "both sides connected at once",
      "overtaken by a later request",
      "it is out of resources",
      "the endpoint is being closed",
      "it wants to see that the request is not an old one, repeated"};
  const auto index = size_t(reason);
  return index < std::size(kTexts) ? kTexts[index] : "a reason unknown here";
}

NameBytes name_bytes(const util::SocketAddress& name) noexcept {
  HelloBytes scratch{};
  put_name(name, scratch);
  NameBytes bytes{};
  bytes[0] = std::byte{scratch.prefix.kind};
  std::memcpy(&bytes[1], scratch.ip, 16);
  std::memcpy(&bytes[17], &scratch.port, 2);
  return bytes;
}

HelloPrefix encode_prefix(HelloKind kind, Refusal reason, uint8_t protocol_version) noexcept {
  return {kHelloMagic, kWireVersion, uint8_t(kind),
          uint16_t(unsigned(reason) | unsigned(protocol_version) << kVersionShift)};
}

HelloBytes encode(const Hello& hello, const JobKey& key, const Path& path,
                  JobKey::Bytes context) noexcept {
  HelloBytes bytes{};
  bytes.prefix = encode_prefix(hello.kind);
  bytes.prefix.argument = hello.terms.credits;
  bytes.receive_units =
      uint16_t(std::min<uint32_t>(hello.terms.receive_bytes / kReceiveUnit, UINT16_MAX));
  bytes.serial = hello.serial;
  bytes.nonce = hello.terms.nonce;
  bytes.heartbeat_address = hello.terms.heartbeat_address;
  bytes.heartbeat_rkey = hello.terms.heartbeat_rkey;
  bytes.answer = hello.answer;
  bytes.protocol_version = hello.terms.protocol_version;
  bytes.resumes = hello.terms.resumes;
  put_name(hello.terms.name, bytes);
  bytes.mac = key.sign(signed_part(bytes), path, context);
  return bytes;
}

Refusal check_prefix(std::span<const std::byte> bytes) noexcept {
  HelloPrefix prefix{};
  if (bytes.size() < offsetof(HelloPrefix, kind)) return Refusal::none;
  std::memcpy(&prefix, bytes.data(), std::min(bytes.size(), sizeof(prefix)));
  if (prefix.magic == __builtin_bswap32(kHelloMagic)) return Refusal::version;
  if (prefix.magic != kHelloMagic) return Refusal::garbage;
  return prefix.version == kWireVersion ? Refusal::none : Refusal::version;
}

Refusal decode(std::span<const std::byte> bytes, HelloKind expected, const JobKey& key,
               const Path& path, JobKey::Bytes context, Hello& hello) noexcept {
  if (const Refusal wrong = check_prefix(bytes); wrong != Refusal::none) return wrong;
  HelloBytes wire;
  // Private data of rdma_cm may be longer than what the peer sent.
  if (bytes.size() < sizeof(wire)) return Refusal::garbage;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if ((wire.prefix.kind & ~kIpv6) != uint8_t(expected)) return Refusal::garbage;
  if (!key.verify(wire.mac, signed_part(wire), path, context)) return Refusal::key;
  hello.kind = expected;
  hello.serial = wire.serial;
  hello.answer = wire.answer;
  hello.mac = wire.mac;
  hello.terms.name = get_name(wire);
  hello.terms.nonce = wire.nonce;
  hello.terms.protocol_version = wire.protocol_version;
  hello.terms.heartbeat_address = wire.heartbeat_address;
  hello.terms.heartbeat_rkey = wire.heartbeat_rkey;
  hello.terms.resumes = wire.resumes;
  hello.terms.credits = wire.prefix.argument;
  hello.terms.receive_bytes = wire.receive_units * kReceiveUnit;
  const bool usable = hello.terms.credits && hello.terms.receive_bytes && hello.terms.name.port() &&
                      !hello.terms.name.wildcard();
  return usable ? Refusal::none : Refusal::garbage;
}

uint16_t decode_challenge(std::span<const std::byte> bytes) noexcept {
  HelloPrefix prefix{};
  std::memcpy(&prefix, bytes.data(), std::min(bytes.size(), sizeof(prefix)));
  return prefix.argument;
}

Refusal decode_refusal(std::span<const std::byte> bytes) noexcept {
  HelloPrefix prefix;
  if (bytes.size() < sizeof(prefix)) return Refusal::none;
  std::memcpy(&prefix, bytes.data(), sizeof(prefix));
  // Whatever the peer's version is, it reports that the versions differ.
  if (prefix.magic == __builtin_bswap32(kHelloMagic)) return Refusal::version;
  const bool challenge = prefix.kind == uint8_t(HelloKind::challenge);
  if (prefix.magic != kHelloMagic || (prefix.kind != uint8_t(HelloKind::refusal) && !challenge))
    return Refusal::none;
  if (challenge && prefix.version == kWireVersion) return Refusal::replay;
  return prefix.version == kWireVersion ? Refusal(prefix.argument & kReasonMask) : Refusal::version;
}

std::string version_text(std::span<const std::byte> bytes, uint8_t ours) {
  HelloBytes wire{};
  if (!bytes.empty()) std::memcpy(&wire, bytes.data(), std::min(bytes.size(), sizeof(wire)));
  if (wire.prefix.magic != kHelloMagic) return "another byte order";
  if (wire.prefix.version != kWireVersion)
    return version_fault("handshake", wire.prefix.version, kWireVersion);
  const bool refusal = wire.prefix.kind == uint8_t(HelloKind::refusal);
  return version_fault(
      "protocol", refusal ? wire.prefix.argument >> kVersionShift : wire.protocol_version, ours);
}

}  // namespace erdma::transport::verbs
