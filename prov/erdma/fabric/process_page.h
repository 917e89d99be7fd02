#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "fabric/stat_blocks.h"
#include "util/fd.h"
#include "util/stat_page.h"

namespace erdma::fabric {

/// The page of statistics of this process. All endpoints share it, and the last one destroys it.
/// Thread-safe. In a forked child the calls do nothing.
class ProcessPage {
 public:
  /// Null: the page can't be made, and the provider works without it. A forked child gets its own
  /// page.
  static std::shared_ptr<ProcessPage> get() noexcept;

  /// A block, which readers skip until end_change(). Null: none is free; the caller then calls
  /// leave_out(), once for each endpoint and peer.
  template <typename Block>
  Block* take(StatKindIndex kind) noexcept {
    return reinterpret_cast<Block*>(take_bytes(kind));
  }
  void leave_out() noexcept;
  /// An endpoint without a block was opened, or (-1) is being closed.
  void hide_endpoint(int change) noexcept;
  template <typename Block>
  void give_back(Block* block) noexcept {
    give_back_bytes(reinterpret_cast<std::byte*>(block));
  }
  /// The part of a block that `kind` holds, which is made if necessary. Null: there is no memory.
  template <typename Part, typename Block>
  Part* part(const Block& block, StatKindIndex kind) noexcept {
    return reinterpret_cast<Part*>(part_bytes(reinterpret_cast<const std::byte*>(&block), kind));
  }
  /// Null: the block does not have this part.
  template <typename Part, typename Block>
  const Part* known_part(const Block& block, StatKindIndex kind) noexcept {
    return reinterpret_cast<const Part*>(
        known_part_bytes(reinterpret_cast<const std::byte*>(&block), kind));
  }
  template <typename Block>
  uint64_t index_of(const Block& block) noexcept {
    return x_page->index_of(reinterpret_cast<const std::byte*>(&block));
  }
  template <typename Block>
  Block& block_at(StatKindIndex kind, uint64_t index) noexcept {
    return *reinterpret_cast<Block*>(x_page->block_at(kind, uint32_t(index)));
  }
  template <typename Block>
  static void end_change(Block& block) noexcept {
    util::StatPage::end_change(reinterpret_cast<std::byte*>(&block));
  }
  template <typename Block>
  static void begin_change(Block& block) noexcept {
    util::StatPage::begin_change(reinterpret_cast<std::byte*>(&block));
  }
  /// Adds the counters of an endpoint that is being closed. `refused`: bytes copied to and from
  /// peers for which the kernel refused CMA.
  void keep(const transport::ShmCounters& shm, const transport::NicCounters& nic,
            const transport::GpuCounters& gpu, uint64_t refused) noexcept;
  /// To be called before and after keep() and give_back() of one endpoint, so that readers count it
  /// exactly once.
  void begin_move() noexcept;
  void end_move() noexcept;
  bool ours() const noexcept { return x_page->ours(); }
  /// A pipe to which another process writes in order to be shown what waits; -1: there is none. The
  /// bytes have no meaning, and the writer reads them back.
  int questions() const noexcept { return x_questions.get(); }

  explicit ProcessPage(std::unique_ptr<util::StatPage> page) noexcept : x_page(std::move(page)) {}
  ProcessPage(const ProcessPage&) = delete;
  ProcessPage& operator=(const ProcessPage&) = delete;
  /// Logs how much data all endpoints moved.
  ~ProcessPage();

 private:
  void introduce();
  std::byte* take_bytes(StatKindIndex kind) noexcept;
  void give_back_bytes(std::byte* block) noexcept;
  std::byte* part_bytes(const std::byte* block, StatKindIndex kind) noexcept;
  const std::byte* known_part_bytes(const std::byte* block, StatKindIndex kind) noexcept;

  std::mutex x_mutex;  ///< protects the blocks; a forked child never takes it
  std::unique_ptr<util::StatPage> x_page;
  ProcessBlock* x_process = nullptr;
  unsigned x_moves = 0;  ///< endpoints between begin_move() and end_move()
  util::Fd x_questions;
};

}  // namespace erdma::fabric
