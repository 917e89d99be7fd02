#include "transport/shm/bursts.h"

#include "libcheck.h"

/// Tests what counts as messages to several peers at a time.
namespace {

using erdma::transport::shm::Bursts;

struct BurstCase {
  const char* links;  ///< one letter for each message; '.' = a poll
  const char* in_burst;
};
constexpr BurstCase kBurstCases[] = {
    {"aaaa", "----"},
    {"ababab", "------"},
    {"a.b.c.d", "- - - -"},
    {"abca", "--xx"},
    {"abc.abc.abc", "--x xxx xxx"},  // an all-to-all in a loop
    {"abc.a.b.a.b", "--x x - - -"},  // afterwards one at a time
    {"ab.bc.cd.da", "-- -- -- --"},
    {"aabbcc..a.a", "----xx  x -"},
    {"abc.ab.ab", "--x xx --"},
};

TEST(messages_to_three_peers_between_two_polls_are_a_burst, std::size(kBurstCases)) {
  const BurstCase& c = kBurstCases[_i];
  Bursts bursts;
  uint32_t polls = UINT32_MAX - 1;  // wraps around
  for (size_t i = 0; c.links[i]; ++i) {
    if (c.links[i] == '.')
      ++polls;
    else
      ck_assert_msg(bursts.add(c.links + (c.links[i] - 'a'), polls) == (c.in_burst[i] == 'x'),
                    "%s, %zu", c.links, i);
  }
}

}  // namespace
