#pragma once

#include <cstddef>
#include <cstdint>

/// The page of statistics of a process, as it lies in memory (docs/statistics.md). The provider
/// writes it, and the program fi_erdma reads it: this file and stat_sequence.h are all that they
/// share. The page describes itself: a reader knows nothing but these structures, and finds blocks
/// and fields by name.
namespace erdma::stat_layout {

/// Of the memfd; /proc/PID/fd shows "/memfd:erdma-stat (deleted)".
inline constexpr char kFileName[] = "erdma-stat";
inline constexpr char kMagic[8] = {'e', 'r', 'd', 'm', 'a', 's', 't', 't'};
/// Changes if a reader of the old layout would misread the new one. New kinds of blocks and new
/// fields change nothing.
inline constexpr uint32_t kLayout = 1;
inline constexpr uint32_t kByteOrder = 0x01020304;
inline constexpr size_t kMostBytes = size_t(64) << 20;  ///< of a page

/// At offset 0. All of it but `ready` stands before the page is ready, and never changes then.
struct Header {
  char magic[8];
  uint32_t layout;
  uint32_t byte_order;                          ///< kByteOrder, as the writer's machine has it
  uint64_t bytes;                               ///< of the page
  uint32_t kinds_offset, kinds, kind_bytes;     ///< the table of Kind; bytes of an entry
  uint32_t fields_offset, fields, field_bytes;  ///< the directory: the table of Field
  uint32_t ready;  ///< 1 = the tables are complete; written last, with release order
  uint32_t reserved;
};
static_assert(sizeof(Header) == 56);

/// A row of equal blocks. A reader looks at the first `used` ones.
struct Kind {
  char name[16];
  uint64_t offset;  ///< of the first block
  uint32_t block_bytes;
  uint32_t capacity;
  uint32_t used;  ///< blocks that were ever in use; grows, before its last block is written
  uint32_t reserved;
};
static_assert(sizeof(Kind) == 40);

enum class Type : uint8_t { number = 1, text = 2 };  ///< uint64_t; bytes up to the first 0
/// A counter only grows while its block lives; a gauge comes and goes; a fact stands still.
enum class Meaning : uint8_t { fact = 0, counter = 1, gauge = 2 };

/// What a block of a kind holds at an offset.
struct Field {
  char name[32];
  char unit[8];     ///< "bytes", "ns", ...; empty: a plain number, or text
  uint16_t kind;    ///< index in the table of kinds
  uint8_t type;     ///< Type; a reader skips what it does not know
  uint8_t meaning;  ///< Meaning
  uint32_t offset;  ///< in the block; of a number, divisible by 8
  uint32_t bytes;   ///< of a number 8; of a text its room
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

/// A number that does not apply, as the rank of a process that no launcher started.
inline constexpr uint64_t kUnknown = UINT64_MAX;

}  // namespace erdma::stat_layout
