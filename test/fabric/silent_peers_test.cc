// A large job has many peers that say a few words at its beginning and are silent afterwards. These
// tests bound the memory that each of them takes.
#include <memory>
#include <vector>

#include "fabric/rig.h"
#include "fabric/stat_blocks.h"
#include "fake/live_bytes.h"
#include "transport/shm/layout.h"

namespace {

using namespace erdma::test;
using erdma::fake::live_bytes;

/// Both exchange a few messages, each with a link of its own.
void acquaint(Port& one, Port& other) {
  const fi_addr_t to_other = one.insert(other), to_one = other.insert(one);
  for (int i = 0; i < 4; ++i) {
    exchange(one, other, to_other, 8);
    exchange(other, one, to_one, 8);
  }
}

TEST(a_silent_peer_takes_little_memory) {
  constexpr size_t kPorts = 12;
  /// Bytes. What endpoints keep after several peers connected at a time varies: 1700 to 1733 were
  /// measured.
  constexpr size_t kMost = 1776;
  on_shm();
  Root root;
  // Every endpoint has a peer already, as the first one causes allocations that serve many.
  Port first(root);
  std::vector<std::unique_ptr<Port>> ports;
  for (size_t i = 0; i < kPorts; ++i) {
    ports.push_back(std::make_unique<Port>(root));
    acquaint(*ports.back(), first);
  }
  const size_t before = live_bytes();
  for (size_t i = 0; i < kPorts; ++i)
    for (size_t k = 0; k < i; ++k) acquaint(*ports[i], *ports[k]);
  const size_t each = (live_bytes() - before) / (kPorts * (kPorts - 1));
  ck_assert_uint_gt(each, sizeof(erdma::fabric::PeerBlock));  // something was counted
  ck_assert_uint_le(each, kMost);
}

/// What lies in shared memory.
TEST(a_silent_peer_takes_little_shared_memory) {
  using namespace erdma::transport::shm;
  ck_assert_uint_le(sizeof(erdma::fabric::PeerBlock), 192);
  ck_assert_uint_le(kColdChunkBytes / kColdRings, 576);
}

TEST(a_peer_that_was_only_inserted_takes_no_more_than_its_address) {
  constexpr size_t kAddresses = 4096;
  Root root;
  Port port(root);
  std::vector<char> name = port.name();
  const auto insert = [&](size_t number) {
    auto* const address = reinterpret_cast<sockaddr_in*>(name.data());
    ck_assert_int_eq(address->sin_family, AF_INET);
    address->sin_port = uint16_t(1 + number);
    fi_addr_t inserted = FI_ADDR_NOTAVAIL;
    ck_assert_int_eq(fi_av_insert(port.av, name.data(), 1, &inserted, 0, nullptr), 1);
  };
  insert(0);
  const size_t before = live_bytes();
  for (size_t i = 1; i <= kAddresses; ++i) insert(i);
  ck_assert_uint_gt(live_bytes(), before);
  ck_assert_uint_le((live_bytes() - before) / kAddresses, 50);
}

}  // namespace
