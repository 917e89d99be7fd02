#include <rdma/fi_errno.h>

#include "libcheck.h"
#include "transport/shm/layout.h"
#include "transport/shm_pair.h"

/// Tests that resources of which all peers together have a limited number come back when a peer
/// ends.
namespace erdma::test {
namespace {

using transport::Link;
using transport::shm::Options;
using transport::shm::PathPolicy;

bool is_hot(Link& link) {
  return link.limits().eager > transport::shm::kSlotPayload;
}

/// Polls both sides until `condition`.
template <typename Condition>
bool until(Side& one, Side& other, Condition condition) {
  Pair pair;
  pair.a.transport = one.transport;
  pair.a.sink = one.sink;
  pair.b.transport = other.transport;
  pair.b.sink = other.sink;
  return pair.poll_until(condition);
}

void send_one(Side& from, Side& to) {
  Link& link = **from.transport->link_to(to.name);
  const iovec nothing{nullptr, 0};
  const size_t before = to.sink->packets.size();
  ck_assert(until(from, to, [&] {
    return link.send(numbered(1), &nothing, 1, 0, transport::SendHint::none) == 0;
  }));
  ck_assert(until(from, to, [&] { return to.sink->packets.size() > before; }));
}

TEST(the_hot_ring_of_a_peer_that_ended_is_given_to_another) {
  Options options;
  options.hot_peers = 1;
  Side side;
  ck_assert(open_side(side, options));
  for (size_t round = 0; round < 3; ++round) {
    Side peer;
    ck_assert(open_side(peer));
    for (int i = 0; i < 100 && !is_hot(**peer.transport->link_to(side.name)); ++i)
      send_one(peer, side);
    ck_assert(until(peer, side, [&] { return is_hot(**peer.transport->link_to(side.name)); }));
    peer.transport->shutdown();
    ck_assert(until(peer, side, [&] { return side.sink->downs.size() == round + 1; }));
  }
}

/// Copies by choice take memory, which suffices for sixteen peers at a time. Peers that ended do
/// not count.
TEST(the_memory_for_copies_of_peers_that_ended_is_there_for_others) {
  Options options;
  options.paths = PathPolicy::copy;
  Side side;
  ck_assert(open_side(side, options));
  auto& shm = static_cast<transport::shm::ShmTransport&>(*side.transport);
  for (size_t round = 0; round < 18; ++round) {
    Side peer;
    ck_assert(open_side(peer, options));
    const uint64_t copied = shm.counters().bounce_in_bytes;
    // The receiver reads by CMA until the peer has mapped the memory for copies.
    for (uint64_t token = 1; shm.counters().bounce_in_bytes == copied; ++token) {
      const auto bytes = pattern(200'000, 7);
      const iovec from{const_cast<std::byte*>(bytes.data()), bytes.size()};
      Link& out = **peer.transport->link_to(side.name);
      transport::RemoteKey remote_key;
      ck_assert(until(peer, side, [&] {
        return out.share(&from, 1, bytes.size(), transport::Access::remote_read, remote_key) == 0;
      }));
      send_one(peer, side);
      std::vector<std::byte> target(bytes.size());
      const iovec to{target.data(), target.size()};
      const size_t dones = side.sink->dones.size();
      Link& in = **side.transport->link_to(peer.name);
      ck_assert_int_eq(in.get({remote_key, 0, to.iov_len}, &to, 1, token), 0);
      ck_assert(until(peer, side, [&] { return side.sink->dones.size() > dones; }));
      ck_assert_int_eq(side.sink->dones.back().status, 0);
      (void)out.revoke(remote_key);
    }
    peer.transport->shutdown();
    ck_assert(until(peer, side, [&] { return side.sink->downs.size() == round + 1; }));
  }
}

}  // namespace

}  // namespace erdma::test
