#include "fi_erdma/waits.h"

#include <string>
#include <vector>

#include "libcheck.h"

using fi_erdma::Json;
using fi_erdma::WaitGraph;

namespace {

/// The document of a process with one endpoint, and one peer.
Json document(int pid, const char* address, const char* peer, Json gauges, bool sends) {
  return {{"pid", pid},
          {"host", "node1"},
          {"process", {{"rank", pid}}},
          {"endpoints", Json::array({{{"address", address}, {"device", "shm"}}})},
          {"peers", Json::array({{{"address", peer},
                                  {"path", "shm"},
                                  {"sends_for", "match"},
                                  {"gauges", gauges},
                                  {"stands", {{"sends", sends}}}}})}};
}

/// Rank 2 keeps so many messages of rank 1, which waits for it.
void expect(uint64_t throttled, uint64_t unexpected, const char* wanted) {
  const Json sender = {{"sends", 1}, {"send_bytes", 4096}, {"throttled", throttled}};
  const WaitGraph graph({document(1, "a", "b", sender, true),
                         document(2, "b", "a", {{"unexpected", unexpected}}, false)});
  const auto waits = graph.waits_of(0);
  ck_assert_uint_eq(waits.size(), 1);
  ck_assert_uint_eq(waits[0].to, 1);
  ck_assert_str_eq(waits[0].why.c_str(), wanted);
}

TEST(a_send_tells_that_its_receiver_keeps_no_more_messages) {
  expect(0, 3, "1 send of 4.00 KiB to rank 2: rank 2 has 3 of these and no receive that matches");
  expect(1, 3,
         "1 send of 4.00 KiB to rank 2: rank 2 has 3 of these and no receive that matches; "
         "it keeps no more unexpected messages");
  expect(1, 0,
         "1 send of 4.00 KiB to rank 2: announced, and not asked for; it keeps no more "
         "unexpected messages");
}

TEST(processes_that_wait_for_each_other_are_a_circle_unless_one_moves_bytes) {
  const Json sends = {{"sends", 1}, {"send_bytes", 4096}};
  std::vector<Json> all = {document(1, "a", "b", sends, true), document(2, "b", "c", sends, true),
                           document(3, "c", "b", sends, true)};
  ck_assert(WaitGraph(all).circle() == (std::vector<size_t>{1, 2}));
  all[0]["verdict"] = "moves";
  ck_assert(WaitGraph(all).circle() == (std::vector<size_t>{1, 2}));
  for (const size_t moving : {1u, 2u}) {
    std::vector<Json> some = all;
    some[moving]["verdict"] = "moves";
    ck_assert(WaitGraph(some).circle().empty());
  }
}

TEST(a_process_that_moves_bytes_waits_for_none_and_is_an_end) {
  const Json sends = {{"sends", 1}, {"send_bytes", 4096}};
  std::vector<Json> all = {document(1, "a", "b", sends, true), document(2, "b", "a", sends, true),
                           document(3, "c", "d", sends, true), document(4, "d", "c", sends, false)};
  all[0]["verdict"] = all[1]["verdict"] = "moves";
  const WaitGraph apart(all);
  ck_assert(!apart.waits(0) && !apart.waits(1) && apart.waits(2) && !apart.waits(3));
  ck_assert_uint_eq(apart.waits_of(0).size(), 1);  // which is shown
  ck_assert(apart.circle().empty() && apart.ends() == std::vector<size_t>{3});

  all[2] = document(3, "c", "b", sends, true);
  ck_assert(WaitGraph(all).ends() == std::vector<size_t>{1});
}

TEST(a_process_that_only_one_that_moves_waits_for_is_not_counted_as_unseen) {
  const Json sends = {{"sends", 1}, {"send_bytes", 4096}};
  Json moves = document(1, "a", "x", sends, true);
  moves["verdict"] = "moves";
  ck_assert_uint_eq(WaitGraph({moves, document(2, "b", "y", sends, true)}).unseen(), 1);
}

/// The words for a send whose block has these members, and whose gauges are `gauges`.
void expect_why(const char* kind, const char* waits_for, const Json& gauges, const char* wanted) {
  Json sender = document(1, "a", "b", gauges, true);
  sender["peers"][0]["send_kind"] = kind;
  sender["peers"][0]["sends_for"] = waits_for;
  const WaitGraph graph({sender, document(2, "b", "a", {}, false)});
  ck_assert_uint_eq(graph.waits_of(0).size(), 1);
  ck_assert_str_eq(graph.waits_of(0)[0].why.c_str(), wanted);
}

TEST(an_operation_on_the_memory_of_a_peer_is_not_called_a_send) {
  const Json one = {{"sends", 1}, {"send_bytes", 8}, {"send_tag", 0u}};
  const Json three = {{"sends", 3}, {"send_bytes", 0}, {"send_tag", 0u}};
  expect_why("write", "target", one, "1 write of 8 B to rank 2: it did not execute them");
  expect_why("read", "room", one,
             "1 read of 8 B to rank 2: the connection has no room, rank 2 keeps what came");
  expect_why("write", "target", three,
             "3 operations, the oldest a write to rank 2: it did not execute them");
  expect_why("atomic", "target", three,
             "3 operations, the oldest an atomic operation to rank 2: it did not execute them");
  expect_why("message", "delivery", one,
             "1 send of 8 B tag 0x0 to rank 2: it has not confirmed the delivery");
}

/// Of two processes, each of which sends to one that is not among them.
size_t unseen(const char* peer, const char* other_peer, const char* other_host, const char* path) {
  const Json sender = {{"sends", 1}, {"send_bytes", 4096}};
  Json one = document(1, "a", peer, sender, true), two = document(2, "b", other_peer, sender, true);
  two["host"] = other_host;
  one["peers"][0]["path"] = two["peers"][0]["path"] = path;
  const WaitGraph graph({one, two});
  ck_assert(graph.ends() == std::vector<size_t>{fi_erdma::kNobody});
  return graph.unseen();
}

TEST(processes_that_are_not_seen_are_counted) {
  ck_assert_uint_eq(unseen("c", "c", "node1", "shm"), 1);
  ck_assert_uint_eq(unseen("c", "d", "node1", "shm"), 2);
  ck_assert_uint_eq(unseen("c", "c", "node2", "nic"), 1);
  // Addresses of shared memory are those of one host.
  ck_assert_uint_eq(unseen("c", "c", "node2", "shm"), 2);
}

}  // namespace
