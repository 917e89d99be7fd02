#pragma once

#include <cstddef>
#include <cstdint>

/// The layout of a process's page of statistics in memory (docs/statistics.md). The provider writes
/// the page and the program fi_erdma reads it; they share no code but this file and
/// stat_sequence.h. The page describes itself: a reader needs these structures only, and finds
/// blocks and fields by name.
namespace erdma::stat_layout {

/// The name of the memfd; /proc/PID/fd shows "/memfd:erdma-stat (deleted)".
inline constexpr char kFileName[] = "erdma-stat";
inline constexpr char kMagic[8] = {'e', 'r', 'd', 'm', 'a', 's', 't', 't'};
/// Incremented when a reader of the old layout would misread the new one. New kinds of blocks and
/// new fields do not change it.
inline constexpr uint32_t kLayout = 1;
inline constexpr uint32_t kByteOrder = 0x01020304;
inline constexpr size_t kMostBytes = size_t(64) << 20;  ///< the largest page

/// At offset 0. All fields are written before `ready` is set, and never change afterwards.
struct Header {
  char magic[8];
  uint32_t layout;
  uint32_t byte_order;                          ///< kByteOrder in the writer's byte order
  uint64_t bytes;                               ///< size of the page
  uint32_t kinds_offset, kinds, kind_bytes;     ///< the table of Kind; bytes of an entry
  uint32_t fields_offset, fields, field_bytes;  ///< the directory: the table of Field
  uint32_t ready;  ///< 1 = the tables are complete; written last, with release order
  uint32_t reserved;
};
static_assert(sizeof(Header) == 56);

/// A row of equal blocks. A reader looks at the first `used` ones.
struct Kind {
  char name[16];
  uint64_t offset;  ///< of the first block, from the start of the page
  uint32_t block_bytes;
  uint32_t capacity;
  uint32_t used;  ///< blocks that were ever in use; it grows before the new block is written
  /// Not 0: each block holds further fields of the block of the same index of the kind whose index
  /// is less by 1. Such a part has no sequence of its own. While it is not in use, all its fields
  /// are 0 or empty.
  uint32_t part_of;
};
static_assert(sizeof(Kind) == 40);

enum class Type : uint8_t { number = 1, text = 2 };  ///< uint64_t; bytes up to the first 0
/// A counter only grows while its block is in use; a gauge rises and falls; a fact rarely changes.
enum class Meaning : uint8_t { fact = 0, counter = 1, gauge = 2 };

/// Describes one field of the blocks of a kind.
struct Field {
  char name[32];
  char unit[8];     ///< "bytes", "ns", ...; empty: a plain number, or text
  uint16_t kind;    ///< index in the table of kinds
  uint8_t type;     ///< Type; a reader skips what it does not know
  uint8_t meaning;  ///< Meaning
  uint32_t offset;  ///< in the block; divisible by 8 for a number
  uint32_t bytes;   ///< 8 for a number; for a text the space reserved for it
  uint32_t reserved;
};
static_assert(sizeof(Field) == 56);

/// At the beginning of each block. Facts change only while `sequence` is odd; counters and gauges
/// are single words that change at any time.
struct BlockHead {
  uint32_t sequence;
  uint32_t in_use;
};
static_assert(sizeof(BlockHead) == 8);

/// The value of a number that does not apply, such as the rank of a process that no launcher
/// started.
inline constexpr uint64_t kUnknown = UINT64_MAX;

}  // namespace erdma::stat_layout
