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

/// The page of statistics of this process. All its endpoints share it, and it lives as long as one
/// of them. Thread-safe; in a forked child the calls do nothing.
class ProcessPage {
 public:
  /// Null if it can't be made: nothing depends on it. A forked child gets a page of its own.
  static std::shared_ptr<ProcessPage> get() noexcept;

  /// A block that is being changed. Null: there is none, and that is counted.
  template <typename Block>
  Block* take(StatKindIndex kind) noexcept {
    return reinterpret_cast<Block*>(take_bytes(kind));
  }
  template <typename Block>
  void give_back(Block* block) noexcept {
    give_back_bytes(reinterpret_cast<std::byte*>(block));
  }
  template <typename Block>
  uint64_t index_of(const Block& block) noexcept {
    return x_page->index_of(reinterpret_cast<const std::byte*>(&block));
  }
  template <typename Block>
  static void end_change(Block& block) noexcept {
    util::StatPage::end_change(reinterpret_cast<std::byte*>(&block));
  }
  template <typename Block>
  static void begin_change(Block& block) noexcept {
    util::StatPage::begin_change(reinterpret_cast<std::byte*>(&block));
  }
  /// Adds what an endpoint counted that is being closed; `refused`: bytes copied with peers on whom
  /// the kernel refused CMA.
  void keep(const transport::ShmCounters& shm, const transport::NicCounters& nic,
            const transport::GpuCounters& gpu, uint64_t refused) noexcept;
  /// Around keep() and give_back() of one endpoint, so that no reader counts it twice, or not at
  /// all.
  void begin_move() noexcept;
  void end_move() noexcept;
  bool ours() const noexcept { return x_page->ours(); }
  /// The end of a pipe, to which another process writes that wants to see what waits; -1: there is
  /// none. Its contents mean nothing, and the writer takes them out again.
  int questions() const noexcept { return x_questions.get(); }

  explicit ProcessPage(std::unique_ptr<util::StatPage> page) noexcept : x_page(std::move(page)) {}
  ProcessPage(const ProcessPage&) = delete;
  ProcessPage& operator=(const ProcessPage&) = delete;
  /// Says what all endpoints moved.
  ~ProcessPage();

 private:
  void introduce();
  std::byte* take_bytes(StatKindIndex kind) noexcept;
  void give_back_bytes(std::byte* block) noexcept;

  std::mutex x_mutex;  ///< of the blocks; a child of a fork never takes it
  std::unique_ptr<util::StatPage> x_page;
  ProcessBlock* x_process = nullptr;
  uint64_t x_refused = 0;  ///< see keep()
  unsigned x_moves = 0;    ///< between begin_move() and end_move()
  util::Fd x_questions;
};

/// CLOCK_REALTIME.
uint64_t nanoseconds_since_1970() noexcept;

}  // namespace erdma::fabric
