#include <unistd.h>

#include <cerrno>
#include <set>
#include <vector>

#include "fake/captured_log.h"
#include "libcheck.h"
#include "transport/verbs_rig.h"

/// Tests blocks of registered memory: which are handed out, which are kept, and what happens
/// without memory.
namespace erdma::test {
namespace {

using verbs::BlockPool;
using verbs::OwnUse;

constexpr size_t kBytes = 1000;
const size_t kPageBytes = size_t(getpagesize());
constexpr size_t kPerSlab = 4;
constexpr size_t kSlabs = 3;

TEST(blocks_are_apart_and_registered_up_to_the_limit) {
  Rig rig;
  BlockPool pool(*rig.device, OwnUse::packets, kBytes, kPerSlab, kSlabs);
  ck_assert_uint_ge(pool.block_bytes(), kBytes);
  std::set<std::byte*> starts;
  std::vector<BlockPool::Block> blocks;
  for (BlockPool::Block block; pool.acquire(block); blocks.push_back(block)) {
    for (std::byte* start : starts)
      ck_assert(block.bytes >= start + kBytes || start >= block.bytes + kBytes);
    starts.insert(block.bytes);
    ck_assert_ptr_nonnull(rig.nic.region(block.lkey, false, uint64_t(block.bytes), kBytes, 0));
  }
  ck_assert_uint_eq(starts.size(), kPerSlab * kSlabs);
  ck_assert_uint_eq(pool.in_use(), kPerSlab * kSlabs);
  for (const BlockPool::Block& block : blocks) pool.release(block);
}

/// The device makes no region for all blocks of a slab.
TEST(a_slab_is_no_longer_than_the_devices_longest_region) {
  fake::Nic::one().max_mr_size = 2 * kPageBytes;
  Rig rig;
  BlockPool pool(*rig.device, OwnUse::packets, kPageBytes - 100, kPerSlab, kSlabs);
  std::vector<BlockPool::Block> blocks;
  for (BlockPool::Block block; pool.acquire(block);) blocks.push_back(block);
  ck_assert_uint_eq(blocks.size(), kPerSlab * kSlabs);
  for (const BlockPool::Block& block : blocks) pool.release(block);
}

TEST(a_block_that_came_back_is_handed_out_again) {
  Rig rig;
  BlockPool pool(*rig.device, OwnUse::packets, kBytes, kPerSlab, kSlabs);
  std::vector<BlockPool::Block> blocks;
  for (BlockPool::Block block; pool.acquire(block);) blocks.push_back(block);
  pool.release(blocks[5]);
  BlockPool::Block again;
  ck_assert(pool.acquire(again));
  ck_assert_ptr_eq(again.bytes, blocks[5].bytes);
  ck_assert(!pool.acquire(again));
  for (const BlockPool::Block& block : blocks) pool.release(block);
}

TEST(memory_that_is_not_used_goes_back) {
  Rig rig;
  const size_t before = rig.nic.regions.size();
  {
    BlockPool pool(*rig.device, OwnUse::packets, kBytes, kPerSlab, kSlabs);
    std::vector<BlockPool::Block> blocks;
    for (BlockPool::Block block; pool.acquire(block);) blocks.push_back(block);
    ck_assert_uint_eq(rig.nic.regions.size(), before + kSlabs);
    for (const BlockPool::Block& block : blocks) pool.release(block);
    ck_assert_uint_eq(pool.in_use(), 0);
    ck_assert_uint_lt(rig.nic.regions.size(), before + kSlabs);
  }
  ck_assert_uint_eq(rig.nic.regions.size(), before);
}

TEST(memory_that_is_there_again_is_found_although_nothing_was_ever_released) {
  Rig rig;
  BlockPool pool(*rig.device, OwnUse::packets, kBytes, kPerSlab, kSlabs);
  BlockPool::Block block;
  rig.nic.refuse_regions = ENOMEM;
  ck_assert(!pool.acquire(block));
  rig.nic.refuse_regions = 0;
  ck_assert(pool.acquire(block));
  pool.release(block);
}

TEST(without_memory_the_device_is_not_asked_again_while_blocks_are_out) {
  Rig rig;
  BlockPool pool(*rig.device, OwnUse::packets, kBytes, kPerSlab, kSlabs);
  std::vector<BlockPool::Block> blocks(kPerSlab);
  for (BlockPool::Block& block : blocks) ck_assert(pool.acquire(block));
  rig.nic.refuse_regions = ENOMEM;
  BlockPool::Block more;
  ck_assert(!pool.acquire(more));
  rig.nic.refuse_regions = 0;
  ck_assert(!pool.acquire(more));
  pool.release(blocks[0]);
  ck_assert(pool.acquire(blocks[0]));
  ck_assert(pool.acquire(more));
  pool.release(more);
  for (const BlockPool::Block& block : blocks) pool.release(block);
}

TEST(a_device_without_a_region_is_not_blamed_on_locked_memory) {
  Rig rig;
  BlockPool pool(*rig.device, OwnUse::packets, kBytes, kPerSlab, kSlabs);
  rig.nic.refuse_regions = ENOSPC;
  g_log.clear();
  BlockPool::Block block;
  for (int i = 0; i < 2; ++i) ck_assert(!pool.acquire(block));
  rig.nic.refuse_regions = 0;
  const std::string line = only_log_line();
  ck_assert(contains(line, "for packets cannot be registered: the NIC has no region left"));
  ck_assert(!contains(line, "ulimit"));
}

/// A peer knows the keys of the blocks that its answers went to. There are 3 slabs of 4 blocks.
TEST(sinks_of_one_peer_are_registered_anew_before_another_has_them) {
  Rig rig;
  BlockPool pool(*rig.device, OwnUse::read_buffers, kBytes, kPerSlab, kSlabs);
  const int peers[4] = {};
  std::set<uint32_t> keys[4];
  for (int round = 0; round < 3; ++round)
    for (int peer = 0; peer < 4; ++peer) {
      std::vector<BlockPool::Block> blocks(2);
      for (BlockPool::Block& block : blocks) {
        ck_assert(pool.acquire(block, &peers[peer]));
        keys[peer].insert(block.lkey);
      }
      for (const BlockPool::Block& block : blocks) pool.release(block);
    }
  for (int peer = 1; peer < 4; ++peer)
    for (const uint32_t key : keys[peer])
      for (int other = 0; other < peer; ++other) ck_assert(!keys[other].count(key));
}

TEST(peers_take_turns_at_the_sinks_where_the_device_has_no_region_left) {
  Rig rig;
  BlockPool pool(*rig.device, OwnUse::read_buffers, kBytes, kPerSlab, kSlabs);
  const int peers[2] = {};
  std::set<uint32_t> keys;
  for (int turn = 0; turn < 4; ++turn) {
    BlockPool::Block block;
    ck_assert(pool.acquire(block, &peers[turn % 2]));
    keys.insert(block.lkey);
    pool.release(block);
    rig.nic.most_regions = rig.nic.regions.size();
  }
  ck_assert_uint_eq(keys.size(), 4);
}

/// There is one region. Its blocks in use keep it.
TEST(sinks_of_a_busy_peer_are_not_handed_on) {
  Rig rig;
  BlockPool pool(*rig.device, OwnUse::read_buffers, kBytes, kPerSlab, kSlabs);
  const int peers[2] = {};
  BlockPool::Block busy, other;
  ck_assert(pool.acquire(busy, &peers[0]));
  rig.nic.most_regions = rig.nic.regions.size();
  ck_assert(!pool.acquire(other, &peers[1]));
  pool.release(busy);
  ck_assert(pool.acquire(other, &peers[1]));
  pool.release(other);
}

TEST(sinks_come_free_for_a_peer_although_others_never_pause) {
  Rig rig;
  BlockPool pool(*rig.device, OwnUse::read_buffers, kBytes, kPerSlab, kSlabs);
  const int peers[4] = {};
  BlockPool::Block busy[3], late;
  for (int peer = 0; peer < 3; ++peer) ck_assert(pool.acquire(busy[peer], &peers[peer]));
  bool served = false;
  for (int round = 0; round < 20 && !served; ++round) {
    served = pool.acquire(late, &peers[3]);
    for (int peer = 0; peer < 3; ++peer) {
      BlockPool::Block next;
      const bool more = pool.acquire(next, &peers[peer]);
      if (busy[peer].bytes) pool.release(busy[peer]);
      busy[peer] = more ? next : BlockPool::Block{};
    }
  }
  ck_assert(served);
  pool.release(late);
  for (const BlockPool::Block& block : busy)
    if (block.bytes) pool.release(block);
}

}  // namespace

}  // namespace erdma::test
