#include "fi_erdma/rates.h"

#include <chrono>
#include <utility>

#include "libcheck.h"

using fi_erdma::Block;
using fi_erdma::BlockKind;
using fi_erdma::Look;
using fi_erdma::Process;
using fi_erdma::Rates;
using fi_erdma::Snapshot;

namespace {

constexpr char kBytes[] = "shm_ring_bytes";

/// A process with an endpoint that moved so many bytes. Its page lacks so many peers.
Look look_at(uint64_t bytes, int seconds, unsigned unsettled) {
  Process process;
  process.pid = 7;
  process.page.snapshot = Snapshot{{BlockKind{"process", {}, {Block{0, {{"started", 1}}, {}}}},
                                    BlockKind{"endpoint", {}, {Block{0, {{kBytes, bytes}}, {}}}},
                                    BlockKind{"peer", {}, {}, unsettled}}};
  Look all;
  all.at += std::chrono::seconds(seconds);
  all.processes.push_back(std::move(process));
  return all;
}

TEST(bytes_are_moved_in_the_time_between_two_looks) {
  const Look before = look_at(1000, 0, 0), now = look_at(5000, 2, 0);
  const Process& shown = now.processes[0];
  const Rates rates(&before, now);
  const Block& endpoint = shown.page.snapshot->kind("endpoint")->blocks[0];
  ck_assert_double_eq(*rates.of(shown).sent, 2000);
  ck_assert_double_eq(*rates.of(shown, endpoint, fi_erdma::paths()[0]).sent, 2000);
  ck_assert_double_eq(*rates.of(shown, endpoint, kBytes), 2000);
  ck_assert(!rates.is_new(shown));
  ck_assert(Rates(nullptr, now).is_new(shown));
}

// The counters of an endpoint have those of its peers.
TEST(bytes_of_a_peer_that_one_look_lacks_are_not_taken_for_moved, 2) {
  const Look before = look_at(_i ? 5000 : 0, 0, !_i), now = look_at(_i ? 0 : 5000, 2, _i);
  const Process& shown = now.processes[0];
  const Rates rates(&before, now);
  const Block& endpoint = shown.page.snapshot->kind("endpoint")->blocks[0];
  ck_assert(!rates.of(shown).sent);
  ck_assert(!rates.of(shown, endpoint, fi_erdma::paths()[0]).sent);
  ck_assert(!rates.of(shown, endpoint, kBytes));
  ck_assert(!rates.is_new(shown));
}

}  // namespace
