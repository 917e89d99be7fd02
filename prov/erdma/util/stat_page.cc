#include "util/stat_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include "util/file_size.h"
#include "util/memory_file.h"
#include "util/process_epoch.h"
#include "util/stat_sequence.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace erdma::util {
namespace {

using stat_layout::BlockHead;
using stat_layout::Field;
using stat_layout::Header;
using stat_layout::Kind;

/// `bytes` rounded up to whole pages of memory.
size_t rounded(size_t bytes) noexcept {
  const auto unit = size_t(sysconf(_SC_PAGESIZE));
  return (bytes + unit - 1) / unit * unit;
}
size_t bytes_of_tables(size_t kinds, size_t fields) noexcept {
  return rounded(sizeof(Header) + kinds * sizeof(Kind) + fields * sizeof(Field));
}
size_t bytes_of(const StatKind& kind) noexcept {
  return rounded(size_t(kind.block_bytes) * kind.capacity);
}

BlockHead& head_of(std::byte* block) noexcept {
  return *reinterpret_cast<BlockHead*>(block);
}
void store(uint32_t& word, uint32_t value, std::memory_order order) noexcept {
  std::atomic_ref(word).store(value, order);
}

void describe(const StatKind& kind, uint64_t offset, Kind& to) noexcept {
  put_text(to.name, kind.name);
  to.offset = offset;
  to.block_bytes = kind.block_bytes;
  to.capacity = kind.capacity;
  to.part_of = uint32_t(kind.part_of + 1);
}
void describe(const StatField& field, Field& to) noexcept {
  put_text(to.name, field.name);
  put_text(to.unit, field.unit);
  to.kind = field.kind;
  to.type = uint8_t(field.type);
  to.meaning = uint8_t(field.meaning);
  to.offset = uint32_t(field.offset);
  to.bytes = uint32_t(field.bytes);
}

/// Kernels before 5.1 lack F_SEAL_FUTURE_WRITE; there, processes of the same user could write to
/// the page. Returns 0 or -errno.
int seal(int fd) noexcept {
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  if (!fcntl(fd, F_ADD_SEALS, kSize | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)) return 0;
  return fcntl(fd, F_ADD_SEALS, kSize | F_SEAL_SEAL) ? -errno : 0;
}

}  // namespace

void put_text(std::span<char> room, std::string_view text) noexcept {
  const size_t length = std::min(text.size(), room.size() - 1);
  std::memcpy(room.data(), text.data(), length);
  std::memset(room.data() + length, 0, room.size() - length);
}

int StatPage::map(size_t bytes) noexcept {
  x_fd.reset(make_memory_file(stat_layout::kFileName));
  if (!x_fd) return -errno;
  if (const int failed = set_file_size(x_fd.get(), bytes)) return failed;
  void* const base = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, x_fd.get(), 0);
  if (base == MAP_FAILED) return -errno;
  x_base = static_cast<std::byte*>(base);
  x_bytes = bytes;
  x_epoch = process_epoch();
  return seal(x_fd.get());
}

/// Allocates memory for a range of whole pages and makes it writable. Without the allocation a
/// write to the range would raise SIGBUS if memory is exhausted.
bool StatPage::back(size_t offset, size_t bytes) noexcept {
  return !allocate_range(x_fd.get(), offset, bytes) &&
         !mprotect(x_base + offset, bytes, PROT_READ | PROT_WRITE);
}

void StatPage::lay_out(std::span<const StatKind> kinds,
                       std::span<const StatField> fields) noexcept {
  Header& header = *reinterpret_cast<Header*>(x_base);
  std::memcpy(header.magic, stat_layout::kMagic, sizeof(header.magic));
  header.layout = stat_layout::kLayout;
  header.byte_order = stat_layout::kByteOrder;
  header.bytes = x_bytes;
  header.kinds_offset = sizeof(Header);
  header.kinds = uint32_t(kinds.size());
  header.kind_bytes = sizeof(Kind);
  header.fields_offset = uint32_t(sizeof(Header) + kinds.size() * sizeof(Kind));
  header.fields = uint32_t(fields.size());
  header.field_bytes = sizeof(Field);
  auto* kind = reinterpret_cast<Kind*>(x_base + header.kinds_offset);
  for (size_t i = 0; i < kinds.size(); ++i) describe(kinds[i], x_rows[i].offset, kind[i]);
  auto* field = reinterpret_cast<Field*>(x_base + header.fields_offset);
  for (const StatField& from : fields) describe(from, *field++);
  store(header.ready, 1, std::memory_order_release);
}

Result<std::unique_ptr<StatPage>> StatPage::create(std::span<const StatKind> kinds,
                                                   std::span<const StatField> fields) try {
  std::unique_ptr<StatPage> page(new StatPage);
  const size_t tables = bytes_of_tables(kinds.size(), fields.size());
  size_t bytes = tables;
  for (const StatKind& kind : kinds) {
    page->x_rows.push_back({bytes, kind.block_bytes, kind.capacity, 0, 0, {}, kind.part_of, {}});
    bytes += bytes_of(kind);
  }
  if (const int failed = page->map(bytes)) return failed;
  if (!page->back(0, tables)) return -ENOMEM;
  page->lay_out(kinds, fields);
  return page;
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}

StatPage::~StatPage() {
  // A forked child keeps the mapping: objects in the child may still count there.
  if (x_base && ours()) munmap(x_base, x_bytes);
}

bool StatPage::ours() const noexcept {
  return x_epoch == process_epoch();
}

bool StatPage::extend(Row& row, uint16_t kind) noexcept try {
  if (row.used == row.capacity) return false;
  row.free.reserve(row.used + 1);
  const size_t wanted = rounded(size_t(row.used + 1) * row.block_bytes);
  if (wanted > row.backed && !back(row.offset + row.backed, wanted - row.backed)) return false;
  row.backed = std::max(row.backed, wanted);
  row.free.push_back(row.used++);
  tell_used(row, kind);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void StatPage::tell_used(const Row& row, uint16_t kind) noexcept {
  auto* const told = reinterpret_cast<Kind*>(x_base + sizeof(Header)) + kind;
  store(told->used, row.used, std::memory_order_release);
}

std::byte* StatPage::part(const std::byte* block, uint16_t kind) noexcept try {
  if (std::byte* const known = known_part(block, kind)) return known;
  if (!ours()) return nullptr;
  Row& row = x_rows[kind];
  const uint32_t index = index_of(block);
  if (row.parts.size() <= index) row.parts.resize(index + 1);
  // Of the pages that it needs, some may have memory already: this costs nothing.
  std::byte* const part = block_at(row, index);
  const size_t unit = rounded(1), begin = size_t(part - x_base) / unit * unit;
  if (!back(begin, rounded(size_t(part - x_base) + row.block_bytes) - begin)) return nullptr;
  std::memset(part, 0, row.block_bytes);
  store(head_of(part).in_use, 1, std::memory_order_release);
  row.parts[index] = true;
  row.used = std::max(row.used, index + 1);
  tell_used(row, kind);
  return part;
} catch (const std::bad_alloc&) {
  return nullptr;
}

std::byte* StatPage::known_part(const std::byte* block, uint16_t kind) noexcept {
  const Row& row = x_rows[kind];
  const uint32_t index = index_of(block);
  return index < row.parts.size() && row.parts[index] ? block_at(row, index) : nullptr;
}

std::byte* StatPage::take(uint16_t kind) noexcept {
  if (!ours()) return nullptr;
  Row& row = x_rows[kind];
  if (row.free.empty() && !extend(row, kind)) return nullptr;
  const uint32_t index = row.free.back();
  std::byte* const block = block_at(row, index);
  row.free.pop_back();
  begin_change(block);
  for (Row& parts : x_rows) {
    if (parts.part_of != int(kind) || index >= parts.parts.size() || !parts.parts[index]) continue;
    store(head_of(block_at(parts, index)).in_use, 0, std::memory_order_relaxed);
    parts.parts[index] = false;
  }
  std::memset(block + sizeof(BlockHead), 0, row.block_bytes - sizeof(BlockHead));
  store(head_of(block).in_use, 1, std::memory_order_relaxed);
  return block;
}

void StatPage::give_back(std::byte* block) noexcept {
  if (!block || !ours()) return;
  begin_change(block);
  store(head_of(block).in_use, 0, std::memory_order_relaxed);
  end_change(block);
  row_of(block).free.push_back(index_of(block));
}

/// x_rows is sorted by offset.
StatPage::Row& StatPage::row_of(const std::byte* block) noexcept {
  const size_t offset = size_t(block - x_base);
  size_t i = x_rows.size() - 1;
  while (i > 0 && x_rows[i].offset > offset) --i;
  return x_rows[i];
}

uint32_t StatPage::index_of(const std::byte* block) noexcept {
  const Row& row = row_of(block);
  return uint32_t((size_t(block - x_base) - row.offset) / row.block_bytes);
}

void StatPage::begin_change(std::byte* block) noexcept {
  stat_layout::begin_change(std::atomic_ref(head_of(block).sequence));
}

void StatPage::end_change(std::byte* block) noexcept {
  stat_layout::end_change(std::atomic_ref(head_of(block).sequence));
}

}  // namespace erdma::util
