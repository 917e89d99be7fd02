#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "util/fd.h"
#include "util/result.h"
#include "util/stat_layout.h"

namespace erdma::util {

/// One kind of block that a page has: a row of the table.
struct StatKind {
  std::string_view name;
  uint32_t block_bytes;  ///< a multiple of 64
  uint32_t capacity;
};
/// One field: a row of the directory.
struct StatField {
  std::string_view name;
  uint16_t kind;
  stat_layout::Type type;
  stat_layout::Meaning meaning;
  std::string_view unit;
  size_t offset, bytes;
};

/// The memory in which a process shows its statistics: a memfd that others can only read, with the
/// tables of stat_layout.h. Invariant: this process only writes it and decides nothing by what it
/// reads there. Memory comes with the blocks in use: the rest can't be touched, so that mlockall()
/// does not fill it either. A forked child keeps the mapping, which its parent still shows, and
/// writes nothing by means of this class; the descriptor is the parent's alone. Not thread-safe.
class StatPage {
 public:
  /// -FI_ENOMEM, -FI_EMFILE, ...; nothing is logged, as nothing depends on the page.
  static Result<std::unique_ptr<StatPage>> create(std::span<const StatKind> kinds,
                                                  std::span<const StatField> fields);
  StatPage(const StatPage&) = delete;
  StatPage& operator=(const StatPage&) = delete;
  ~StatPage();

  /// A zeroed block of the kind, which readers see from end_change() on. Null: all are in use, or
  /// there is no memory.
  std::byte* take(uint16_t kind) noexcept;
  void give_back(std::byte* block) noexcept;
  /// The place of a block among those of its kind.
  uint32_t index_of(const std::byte* block) noexcept;

  /// Around changes of the facts of a block: readers leave it alone meanwhile.
  static void begin_change(std::byte* block) noexcept;
  static void end_change(std::byte* block) noexcept;

  bool ours() const noexcept;  ///< false in a forked child
  int fd() const noexcept { return x_fd.get(); }
  std::span<const std::byte> bytes() const noexcept { return {x_base, x_bytes}; }

 private:
  /// The blocks of a kind. The page tells readers the same; what stands there is never believed.
  struct Row {
    size_t offset;
    uint32_t block_bytes, capacity;
    uint32_t used = 0;
    size_t backed = 0;           ///< bytes that have memory
    std::vector<uint32_t> free;  ///< of the used ones; has room for all of them
  };

  StatPage() noexcept = default;
  int map(size_t bytes) noexcept;
  void lay_out(std::span<const StatKind> kinds, std::span<const StatField> fields) noexcept;
  bool back(size_t offset, size_t bytes) noexcept;
  bool extend(Row& row, uint16_t kind) noexcept;
  Row& row_of(const std::byte* block) noexcept;

  Fd x_fd;
  std::vector<Row> x_rows;
  std::byte* x_base = nullptr;
  size_t x_bytes = 0;
  uint32_t x_epoch = 0;
};

/// Copies as much of a text as fits, with a 0 behind it.
void put_text(std::span<char> room, std::string_view text) noexcept;

}  // namespace erdma::util
