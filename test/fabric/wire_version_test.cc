#include <utility>

#include "fabric/rig.h"
#include "protocol/wire.h"
#include "transport/conformance.h"
#include "transport/shm/shm_transport.h"
#include "transport/simulated_device.h"
#include "transport/verbs/registration.h"
#include "transport/verbs/verbs_transport.h"

/// An endpoint passes the version of the protocol's headers to its transports, which send it to
/// peers.
namespace {

using namespace erdma;
using namespace erdma::test;

constexpr uint8_t kVersion = protocol::wire::kVersion;

/// The result of a transport that connects to a new endpoint: 0, or the status of its link.
int connect(transport::Transport& transport, const util::SocketAddress& endpoint) {
  RecordingSink sink;
  transport::Link& link = **transport.link_to(endpoint);
  const util::SystemClock clock;
  const uint64_t end = clock.now() + 20'000'000'000;
  while (sink.downs.empty() && clock.now() < end) {
    const int rc = link.send(numbered(0), nullptr, 0, 0, transport::SendHint::none);
    if (rc != -FI_EAGAIN) return rc;
    transport.poll(sink);
  }
  return sink.downs.empty() ? -FI_ETIMEDOUT : sink.downs[0].status;
}

util::SocketAddress name_of(const Port& port) {
  const std::vector<char> bytes = port.name();
  return util::SocketAddress::from_sockaddr(bytes.data(), bytes.size());
}

SUITE(.run = erdma::test::on_simulated_devices);

TEST(over_shared_memory) {
  Root root;
  Port port(root);
  for (const auto& [version, status] :
       {std::pair(kVersion, 0), std::pair(uint8_t(kVersion + 1), -FI_ECONNREFUSED)}) {
    transport::shm::Options options;
    options.protocol_version = version;
    auto peer = transport::shm::ShmTransport::open(options, address_of("127.0.0.1", 0));
    ck_assert_int_eq(peer.error(), 0);
    ck_assert_int_eq(connect(**peer, name_of(port)), status);
  }
}

TEST(over_a_nic) {
  g_device = "erdma_0";
  Root root;
  Port port(root);
  const auto device = open_first_device();
  ck_assert_ptr_nonnull(device.get());
  auto cache = transport::verbs::RegistrationCache::create(*device, {});
  ck_assert_int_eq(cache.error(), 0);
  for (const auto& [version, status] :
       {std::pair(kVersion, 0), std::pair(uint8_t(kVersion + 1), -FI_ECONNREFUSED)}) {
    transport::verbs::Options options;
    options.protocol_version = version;
    auto peer =
        transport::verbs::VerbsTransport::open(options, *device, **cache, device->address());
    ck_assert_int_eq(peer.error(), 0);
    ck_assert_int_eq(connect(**peer, name_of(port)), status);
  }
}

}  // namespace
