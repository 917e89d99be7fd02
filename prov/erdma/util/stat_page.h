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

/// One kind of block of a page: an entry of the table of kinds.
struct StatKind {
  std::string_view name;
  uint32_t block_bytes;  ///< a multiple of 64
  uint32_t capacity;
  /// Not negative: the index of the kind of whose blocks these are parts. It has as many.
  int part_of = -1;
};
/// One field: an entry of the table of fields.
struct StatField {
  std::string_view name;
  uint16_t kind;
  stat_layout::Type type;
  stat_layout::Meaning meaning;
  std::string_view unit;
  size_t offset, bytes;
};

/// The memory in which a process publishes its statistics: a memfd that other processes can only
/// read, with the tables of stat_layout.h. Not thread-safe.
/// - Invariant: this process writes the page, and bases no decision on what it reads there.
/// - Only blocks in use have memory. The rest is mapped PROT_NONE, so that mlockall() allocates no
///   memory for it either.
/// - A forked child keeps the mapping, which the parent still publishes, but this class writes
///   nothing in the child. The child does not have the descriptor.
class StatPage {
 public:
  /// A negative fi_errno (-FI_ENOMEM, -FI_EMFILE ...) on failure. Nothing is logged, because the
  /// provider works without the page.
  static Result<std::unique_ptr<StatPage>> create(std::span<const StatKind> kinds,
                                                  std::span<const StatField> fields);
  StatPage(const StatPage&) = delete;
  StatPage& operator=(const StatPage&) = delete;
  ~StatPage();

  /// A zeroed block of the kind. Readers skip it until end_change(). Null: all blocks of the kind
  /// are in use, or memory is exhausted.
  std::byte* take(uint16_t kind) noexcept;
  void give_back(std::byte* block) noexcept;
  /// The part of a block in use that `kind` holds. It is zeroed and has memory from the first call
  /// on, until the block is taken again. Null: memory is exhausted.
  std::byte* part(const std::byte* block, uint16_t kind) noexcept;
  /// Null: the block has no such part yet.
  std::byte* known_part(const std::byte* block, uint16_t kind) noexcept;
  /// The index of a block in the row of its kind.
  uint32_t index_of(const std::byte* block) noexcept;
  std::byte* block_at(uint16_t kind, uint32_t index) noexcept {
    return block_at(x_rows[kind], index);
  }

  /// To be called before and after the facts of a block change: meanwhile readers skip the block.
  static void begin_change(std::byte* block) noexcept;
  static void end_change(std::byte* block) noexcept;

  bool ours() const noexcept;  ///< false in a forked child
  int fd() const noexcept { return x_fd.get(); }
  std::span<const std::byte> bytes() const noexcept { return {x_base, x_bytes}; }

 private:
  /// The blocks of a kind. The table of kinds in the page has the same numbers for readers; this
  /// class never reads them back.
  struct Row {
    size_t offset;
    uint32_t block_bytes, capacity;
    uint32_t used = 0;
    size_t backed = 0;           ///< bytes that have memory
    std::vector<uint32_t> free;  ///< indices below `used` that are free; capacity for all of them
    int part_of = -1;
    std::vector<bool> parts;  ///< of a kind of parts: which of them are in use
  };

  StatPage() noexcept = default;
  int map(size_t bytes) noexcept;
  void lay_out(std::span<const StatKind> kinds, std::span<const StatField> fields) noexcept;
  bool back(size_t offset, size_t bytes) noexcept;
  bool extend(Row& row, uint16_t kind) noexcept;
  void tell_used(const Row& row, uint16_t kind) noexcept;
  std::byte* block_at(const Row& row, uint32_t index) noexcept {
    return x_base + row.offset + size_t(index) * row.block_bytes;
  }
  Row& row_of(const std::byte* block) noexcept;

  Fd x_fd;
  std::vector<Row> x_rows;
  std::byte* x_base = nullptr;
  size_t x_bytes = 0;
  uint32_t x_epoch = 0;
};

/// Copies as much of a text as fits, and fills the rest of `room` with 0: at least one.
void put_text(std::span<char> room, std::string_view text) noexcept;

}  // namespace erdma::util
