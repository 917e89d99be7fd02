#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "transport/shm/layout.h"
#include "transport/shm/unix_socket.h"
#include "transport/shm/wake_socket.h"
#include "transport/shm/wire.h"
#include "transport/shm_pair.h"

namespace erdma::test {

/// Listens and greets as an honest peer would, then owns the ring it was given.
struct Impostor {
  util::Fd listener, socket;
  transport::shm::WakeSocket wake_socket;
  transport::shm::ColdChunk* chunk = nullptr;
  uint32_t ring = 0;
  uint64_t nonce = 0;  ///< 0: take a nonce of its own

  /// Listens at `port`, then greets under that name.
  bool greet(const util::SocketAddress& victim, uint16_t port) {
    (void)listen(port);
    return greet_as(victim, port);
  }
  bool listen(uint16_t port) {
    auto listening = transport::shm::listen_as(address_of("127.0.0.1", port), {});
    if (listening) listener = std::move(*listening);
    return bool(listening);
  }
  bool greet_as(const util::SocketAddress& victim, uint16_t port) {
    if (!ask(victim, port)) return false;
    pollfd readable{socket.get(), POLLIN, 0};
    return poll(&readable, 1, 10'000) == 1 && take_welcome();
  }
  /// Connects, and sends the greeting.
  bool ask(const util::SocketAddress& victim, uint16_t port) {
    socket = std::move(*transport::shm::connect_as_peer(victim));
    transport::shm::Hello hello;
    hello.greeting.boot = transport::shm::boot_id_hash();
    hello.greeting.nonce = nonce ? nonce : uint64_t(getpid()) << 16 | port;
    const auto name = address_of("127.0.0.1", port);
    hello.greeting.name_bytes = uint32_t(name.size());
    std::memcpy(hello.greeting.name, name.data(), name.size());
    if (auto bell = transport::shm::WakeSocket::open()) wake_socket = std::move(*bell);
    hello.greeting.wake_socket = wake_socket.address();
    return transport::shm::send_message(socket.get(), &hello, sizeof(hello)) == 0;
  }
  /// False: there is no welcome.
  bool take_welcome() {
    transport::shm::Welcome welcome;
    auto received = transport::shm::receive(socket.get(), &welcome, sizeof(welcome));
    if (received.bytes != sizeof(welcome) || welcome.status) return false;
    ring = welcome.ring;
    void* memory = mmap(nullptr, transport::shm::kColdChunkBytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED, received.fds[0].get(), 0);
    chunk = static_cast<transport::shm::ColdChunk*>(memory);
    return memory != MAP_FAILED;
  }
  ~Impostor() {
    if (chunk) munmap(chunk, transport::shm::kColdChunkBytes);
  }
};

}  // namespace erdma::test
