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
void expect(uint64_t throttled, uint64_t early, const char* wanted) {
  const Json sender = {{"sends", 1}, {"send_bytes", 4096}, {"throttled", throttled}};
  const WaitGraph graph(
      {document(1, "a", "b", sender, true), document(2, "b", "a", {{"early", early}}, false)});
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

}  // namespace
