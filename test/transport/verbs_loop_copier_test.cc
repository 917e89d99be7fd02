#include <dlfcn.h>
#include <sodium.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <rdma/fi_errno.h>

#include "libcheck.h"
#include "transport/simulated_device.h"
#include "transport/verbs/hello_socket.h"
#include "transport/verbs/loop_copier.h"
#include "transport/verbs/open_region.h"

bool g_no_sodium = false;

/// libsodium's, unless a test lets it fail.
extern "C" int sodium_init() {
  static const auto real =
      reinterpret_cast<decltype(&sodium_init)>(dlsym(RTLD_NEXT, "sodium_init"));
  return g_no_sodium ? -1 : real();
}

/// Tests the copies that a NIC makes from and to itself, on the simulated adapter.
namespace erdma::transport::verbs {
namespace {

constexpr uint16_t kFirstPort = 43'000, kPorts = 16;

bool compat() {
  const char* personality = std::getenv("SOFTERDMA_PERSONALITY");
  return personality && std::string(personality) == "compat";
}

/// The ports at which endpoints of this process may listen.
std::vector<uint16_t> ports_of_listeners() {
  std::vector<uint16_t> ports;
  for (uint16_t port = kFirstPort; !compat() && port < kFirstPort + kPorts; ++port)
    ports.push_back(port);
  for (int fd = 0; compat() && fd < 1024; ++fd) {
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) && listens)
      ports.push_back(util::SocketAddress::of(fd, getsockname).port());
  }
  return ports;
}

/// A device, and a cache that registers memory of the host.
struct Adapter {
  std::unique_ptr<Device> device = test::open_first_device();
  std::unique_ptr<RegistrationCache> cache =
      std::move(*RegistrationCache::create(*device, RegistrationCache::Config{}));
};

SUITE(.run = test::on_simulated_devices);

/// The application's key does not protect it, as nobody tells the copier that key.
TEST(nobody_else_connects_to_a_copier) {
  setenv("SOFTERDMA_FIRST_PORT", std::to_string(kFirstPort).c_str(), 1);
  setenv("SOFTERDMA_PORTS", std::to_string(kPorts).c_str(), 1);
  Adapter adapter;
  LoopCopier copier({}, *adapter.device, *adapter.cache);
  std::vector<std::byte> there(5000, std::byte{7}), here(5000);
  HostRegistrar registrar(*adapter.device, *adapter.cache);
  auto region = registrar.open({there.data(), there.size()}, nullptr, true, true);
  ck_assert(region);
  RemoteKey memory;
  (*region)->describe(memory);
  ck_assert_int_eq(copier.read(here.data(), {memory, 0, here.size()}), 0);
  ck_assert(here == there);

  Options options;
  options.connect_timeout_ns = 500'000'000;
  auto stranger =
      VerbsTransport::open(options, *adapter.device, *adapter.cache, adapter.device->address());
  ck_assert(stranger);
  std::vector<Link*> links;
  for (const uint16_t port : ports_of_listeners()) {
    util::SocketAddress name = adapter.device->address();
    name.set_port(port);
    if (name == (*stranger)->name()) continue;
    auto link = (*stranger)->link_to(name);
    ck_assert(link);
    links.push_back(*link);
  }
  ck_assert(!links.empty());
  struct Downs final : NullSink {
    void on_link_down(Link&, int) noexcept override { ++count; }
    size_t count = 0;
  } downs;
  for (Link* link : links)
    ck_assert_int_eq(link->send({}, nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  while (downs.count < links.size()) {
    (void)(*stranger)->poll(downs);
    for (const Link* link : links)
      ck_assert_msg(!link->was_up(), "a stranger is connected to port %u", link->address().port());
  }
  ck_assert_int_eq(copier.write({memory, 0, here.size()}, here.data()), 0);
}

/// Nobody polls the copier between copies, so it learns of the end of its connection at the next
/// copy.
TEST(a_copy_connects_anew_once_if_its_connection_has_ended, 2) {
  Adapter adapter;
  LoopCopier copier({}, *adapter.device, *adapter.cache);
  std::vector<std::byte> there(5000, std::byte{7}), here(5000);
  HostRegistrar registrar(*adapter.device, *adapter.cache);
  auto region = registrar.open({there.data(), there.size()}, nullptr, true, true);
  ck_assert(region);
  RemoteKey memory;
  (*region)->describe(memory);
  const auto control =
      reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "softerdma_control"));
  if (!control) return;  // a real device
  for (int copies = 0; copies < 2; ++copies) {
    ck_assert_int_eq(copier.read(here.data(), {memory, 0, here.size()}), 0);
    ck_assert(here == there);
    here.assign(here.size(), std::byte{0});
    if (_i == 0) ck_assert_int_eq(control("drop n=1"), 0);
  }
  if (_i == 0) return;
  ck_assert_int_eq(control("wr n=1 times=1000 op=read status=general"), 0);
  ck_assert_int_eq(copier.read(here.data(), {memory, 0, here.size()}), -FI_EIO);
  ck_assert_int_eq(control("clear"), 0);
  ck_assert_int_eq(copier.read(here.data(), {memory, 0, here.size()}), 0);
  ck_assert(here == there);
}

/// The key of a copier would be none.
TEST(without_libsodium_nothing_is_copied) {
  Adapter adapter;
  LoopCopier copier({}, *adapter.device, *adapter.cache);
  std::byte here[8];
  g_no_sodium = true;
  ck_assert_int_eq(copier.read(here, {RemoteKey{}, 0, sizeof(here)}), -FI_EIO);
  g_no_sodium = false;
}

}  // namespace
}  // namespace erdma::transport::verbs
