#include "fi_erdma/on_device.h"

#include <chrono>
#include <utility>
#include <vector>

#include "libcheck.h"

using fi_erdma::Block;
using fi_erdma::BlockKind;
using fi_erdma::FieldInfo;
using fi_erdma::leave_device;
using fi_erdma::Look;
using fi_erdma::Process;
using fi_erdma::Snapshot;

namespace layout = fi_erdma::layout;

namespace {

constexpr char kBytes[] = "shm_ring_bytes";

Block endpoint(uint32_t index, const char* device, uint64_t bytes) {
  return {index, {{kBytes, bytes}}, {{"device", device}}};
}
Block peer(uint32_t index, uint64_t endpoint) {
  return {index, {{"endpoint", endpoint}}, {}};
}
Process process(pid_t pid, std::vector<Block> endpoints, std::vector<Block> peers) {
  const FieldInfo counter{kBytes, "bytes", layout::Type::number, layout::Meaning::counter, 8, 8};
  Process shown;
  shown.pid = pid;
  shown.page.snapshot =
      Snapshot{{BlockKind{"process", {}, {Block{0, {{kBytes, 1000}, {"rank", 3}}, {}}}},
                BlockKind{"endpoint", {counter}, std::move(endpoints)},
                BlockKind{"peer", {}, std::move(peers)}}};
  return shown;
}
Look look() {
  Look all;
  all.processes.push_back(
      process(7, {endpoint(0, "shm", 1), endpoint(4, "erdma_0", 20), endpoint(5, "shm", 300)},
              {peer(0, 4), peer(1, 0), peer(2, 5), peer(3, 4)}));
  all.processes.push_back(process(8, {endpoint(0, "erdma_0", 4000)}, {}));
  all.processes.push_back(process(9, {}, {}));
  return all;
}

TEST(one_device_is_left_with_its_peers_and_processes) {
  Look seen = look();
  leave_device(seen, "shm");
  ck_assert_uint_eq(seen.processes.size(), 1);
  const Snapshot& left = *seen.processes[0].page.snapshot;
  ck_assert_int_eq(seen.processes[0].pid, 7);
  ck_assert_uint_eq(left.kind("endpoint")->blocks.size(), 2);
  ck_assert_ptr_null(left.kind("endpoint")->block(4));
  ck_assert_uint_eq(left.kind("peer")->blocks.size(), 2);
  ck_assert_ptr_nonnull(left.kind("peer")->block(1));
  ck_assert_ptr_nonnull(left.kind("peer")->block(2));
}

// They may have been on any device.
TEST(bytes_of_closed_endpoints_are_unknown_of_one_device) {
  Look seen = look();
  leave_device(seen, "shm");
  const Snapshot& left = *seen.processes[0].page.snapshot;
  ck_assert(!left.process()->number(kBytes));
  ck_assert_uint_eq(*left.process()->number("rank"), 3);
  ck_assert_uint_eq(*fi_erdma::all_bytes_of(left).sent, 301);
}

// The sum of the bytes falls as the second endpoint is closed.
TEST(an_endpoint_that_is_closed_takes_no_rate_of_another_away) {
  const auto seen = [](std::vector<Block> endpoints, int seconds) {
    Look all;
    all.at += std::chrono::seconds(seconds);
    all.processes.push_back(process(7, std::move(endpoints), {}));
    leave_device(all, "shm");
    return all;
  };
  const Look before = seen({endpoint(0, "shm", 100), endpoint(1, "shm", 5000)}, 0);
  const Look now = seen({endpoint(0, "shm", 300)}, 2);
  ck_assert_double_eq(*fi_erdma::Rates(&before, now).of(now.processes[0]).sent, 100);
}

TEST(without_a_device_everything_is_left) {
  Look seen = look();
  leave_device(seen, "");
  ck_assert_uint_eq(seen.processes.size(), 3);
  ck_assert_uint_eq(*fi_erdma::all_bytes_of(*seen.processes[0].page.snapshot).sent, 1321);
}

TEST(a_process_whose_page_cannot_be_read_remains_to_be_named) {
  Look seen = look();
  seen.processes.emplace_back().page.fault = "the page is too small";
  leave_device(seen, "mlx5_0");
  ck_assert_uint_eq(seen.processes.size(), 1);
  ck_assert_str_eq(seen.processes[0].page.fault.c_str(), "the page is too small");
}

}  // namespace
