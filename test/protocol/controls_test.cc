// Tests what each part of an engine needs: peers, the packets that they are to get, and requests
// that wait for room. There is no engine.
#include <cstring>

#include "protocol/pair.h"
#include "protocol/receives.h"

namespace {

using namespace erdma;
using protocol::Peer;
namespace wire = protocol::wire;

struct Loss final : protocol::PeerLoss {
  void lose(Peer&, const transport::Link* link, int with) noexcept override {
    ++count;
    status = link ? 0 : with;
  }
  int count = 0, status = 0;
};

/// The peers of the address 0. Address 1 is a transport that only listens.
struct Surroundings final : protocol::Router, transport::Sink {
  util::Result<transport::Link*> route(const util::SocketAddress& address) noexcept override {
    if (unreachable) return -FI_EHOSTUNREACH;
    return transport.link_to(address);
  }
  void on_packet(transport::Link&, const std::byte* header, const std::byte*,
                 size_t) noexcept override {
    wire::ControlHeader fin;
    std::memcpy(&fin, header, sizeof(fin));
    arrived.push_back(fin.index);
  }
  void on_done(uint64_t, int) noexcept override {}
  void on_link_down(transport::Link&, int) noexcept override {}

  void send(uint32_t index) { controls.send_fin(*peer, {index, 1}, 0); }

  fake::Network network;
  test::Book book;
  fake::Transport transport{network, test::address_with_port(5000)};
  fake::Transport listener{network, test::address_with_port(5001)};
  bool unreachable = false;
  std::vector<uint32_t> arrived;
  Loss loss;
  fake::CompletionSink received;
  protocol::Peers peers{book, *this, loss, receives, nullptr};
  protocol::Controls controls{peers};
  protocol::Receives receives{test::kConfig, peers, controls, received, nullptr};
  Peer* peer = peers.at(1);
};

TEST(a_peer_is_the_same_by_number_and_by_link) {
  Surroundings here;
  ck_assert_ptr_nonnull(here.peer);
  ck_assert_ptr_eq(here.peers.at(1), here.peer);
  ck_assert_ptr_null(here.peers.at(here.book.size));
  ck_assert_int_eq(here.peers.connect(*here.peer), 0);
  ck_assert_ptr_eq(&here.peers.peer_of(*here.peer->link), here.peer);
  here.peers.address_removed(1, here.peer->address);
  ck_assert_ptr_null(here.peers.known(1));
}

TEST(control_packets_wait_for_room_in_their_order) {
  Surroundings here;
  here.transport.behaviour.room = 1;
  for (const uint32_t index : {1u, 2u, 3u}) here.send(index);
  ck_assert(!here.peer->direct && here.peers.waiting().front() == here.peer);
  ck_assert(!protocol::start_all(here.peer->controls));
  here.transport.behaviour.room = SIZE_MAX;
  ck_assert(protocol::start_all(here.peer->controls));
  here.listener.poll(here);
  ck_assert(here.arrived == std::vector<uint32_t>({1, 2, 3}));
  ck_assert_uint_eq(here.peer->controls_kept, 0);
}

TEST(packets_that_wait_for_a_lost_peer_are_dropped) {
  Surroundings here;
  here.transport.behaviour.room = 0;
  for (const uint32_t index : {1u, 2u}) here.send(index);
  ck_assert_uint_eq(here.peer->controls_kept, 2);
  here.controls.drop(*here.peer);
  ck_assert(here.peer->controls.empty());
  ck_assert_uint_eq(here.peer->controls_kept, 0);
}

TEST(a_peer_without_a_way_to_it_is_lost_instead_of_told) {
  Surroundings here;
  here.unreachable = true;
  here.send(1);
  ck_assert_int_eq(here.loss.count, 1);
  ck_assert_int_eq(here.loss.status, -FI_EHOSTUNREACH);
  here.peer->failing = true;  // a peer that is being lost gets no packets, and no second report
  here.send(2);
  ck_assert_int_eq(here.loss.count, 1);
  ck_assert(here.peer->controls.empty());
}

struct Operation final : protocol::Pending {
  int start() noexcept override {
    ++starts;
    return answer;
  }
  void finish(int with) noexcept override { status = with; }
  int answer = 0, starts = 0, status = 1;
};

TEST(an_operation_that_fails_ends_and_the_next_one_starts) {
  Operation fails, waits, behind;
  fails.answer = -FI_EIO;
  waits.answer = -FI_EAGAIN;
  protocol::PendingList<Operation> list;
  for (Operation* operation : {&fails, &waits, &behind}) list.push_back(*operation);
  ck_assert(!protocol::start_all(list));
  ck_assert_int_eq(fails.status, -FI_EIO);
  ck_assert(list.front() == &waits && waits.status == 1 && behind.starts == 0);
  waits.answer = 0;
  ck_assert(protocol::start_all(list) && list.empty());
  ck_assert(waits.starts == 2 && behind.starts == 1 && fails.starts == 1);
}

}  // namespace
