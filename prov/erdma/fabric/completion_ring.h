#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "protocol/completion.h"

namespace erdma::fabric {

/// A queue of trivial values in a power-of-two array that doubles when full. Positions count up
/// from 0 and do not wrap; [head, tail) are in use.
template <typename T>
class GrowingRing {
 public:
  GrowingRing(size_t capacity, size_t limit)
      : x_slots(new T[capacity]), x_mask(capacity - 1), x_limit(limit) {}

  uint64_t head() const noexcept { return x_head; }
  uint64_t tail() const noexcept { return x_tail; }
  size_t size() const noexcept { return x_tail - x_head; }
  T& operator[](uint64_t position) noexcept { return x_slots[position & x_mask]; }

  /// A new slot at the tail, which the caller fills. Null: memory is exhausted, or the limit is
  /// reached.
  T* append() noexcept {
    if (full() && !grow()) [[unlikely]]
      return nullptr;
    return &x_slots[x_tail++ & x_mask];
  }
  bool full() const noexcept { return size() > x_mask; }
  void drop_front(size_t count) noexcept { x_head += count; }
  void cut_tail(uint64_t tail) noexcept { x_tail = tail; }

 private:
  static_assert(std::is_trivial_v<T>);

  [[gnu::noinline, gnu::cold]] bool grow() noexcept {
    const size_t capacity = (x_mask + 1) * 2;
    if (capacity > x_limit) return false;
    std::unique_ptr<T[]> larger(new (std::nothrow) T[capacity]);
    if (!larger) return false;
    for (uint64_t i = x_head; i != x_tail; ++i) larger[i & (capacity - 1)] = x_slots[i & x_mask];
    x_slots = std::move(larger);
    x_mask = capacity - 1;
    return true;
  }

  std::unique_ptr<T[]> x_slots;
  size_t x_mask;
  uint64_t x_head = 0;
  uint64_t x_tail = 0;
  size_t x_limit;
};

/// The entries of one CQ: successes and errors in order of completion. The ring grows as needed. If
/// memory is exhausted, the entries already queued stay readable, and then the queue is overrun as
/// in fi_cq(3). Not thread-safe.
class CompletionRing {
 public:
  static constexpr size_t kInitialCapacity = 1024;

  /// `size_hint`: fi_cq_attr::size, 0 = default. `limit`: the largest capacity, in entries.
  explicit CompletionRing(size_t size_hint, size_t limit = SIZE_MAX)
      : x_entries(capacity_for(size_hint), limit), x_errors(kErrorCapacity, limit) {}

  bool readable() const noexcept { return x_entries.size() != 0 || x_overrun; }
  size_t size() const noexcept { return x_entries.size(); }
  bool full() const noexcept { return x_entries.full(); }
  bool holds_error() const noexcept { return x_next_error != kNone || x_overrun; }

  /// A new entry, which the caller fills. `owner` names the endpoint, for purge().
  protocol::CompletionEntry& append(const void* owner) noexcept {
    Entry* entry = x_entries.append();
    if (!entry) [[unlikely]]
      return overrun();
    entry->owner = owner;
    return entry->completion;
  }
  void push(const protocol::CompletionEntry& completion, const void* owner) noexcept {
    append(owner) = completion;
  }
  void push_error(const protocol::ErrorCompletion& completion, const void* owner) noexcept;

  /// Moves up to `count` (at least 1) successes to `entries`, an array of E = one of the fi_cq_*
  /// entries; `sources` may be null. -FI_EAGAIN if there is nothing, -FI_EAVAIL if an error is
  /// next.
  template <typename E>
  ssize_t read(void* entries, size_t count, fi_addr_t* sources) noexcept {
    const uint64_t head = x_entries.head();
    const uint64_t available = std::min(x_entries.tail(), x_next_error) - head;
    if (available == 0) [[unlikely]]
      return readable() ? -FI_EAVAIL : -FI_EAGAIN;
    count = std::min<size_t>(count, available);
    auto* out = static_cast<std::byte*>(entries);
    for (size_t i = 0; i < count; ++i, out += sizeof(E)) {
      const Entry& entry = x_entries[head + i];
      std::memcpy(out, &entry, sizeof(E));
      if (sources) sources[i] = entry.completion.source;
    }
    x_entries.drop_front(count);
    return static_cast<ssize_t>(count);
  }

  /// fi_cq_readerr(3): 1, or -FI_EAGAIN if no error is next. Writes only the part of `error` that
  /// an application of this API version has.
  ssize_t read_error(fi_cq_err_entry* error, uint32_t api_version) noexcept;

  /// Removes every entry of `owner`.
  void purge(const void* owner) noexcept;

 private:
  static constexpr uint64_t kNone = UINT64_MAX;
  static constexpr size_t kErrorCapacity = 16;

  /// One cache line. It begins like fi_cq_tagged_entry, of which the other formats are prefixes.
  struct alignas(64) Entry {
    protocol::CompletionEntry completion;
    const void* owner;
  };
  static_assert(sizeof(Entry) == 64);
  static_assert(offsetof(protocol::CompletionEntry, source) == sizeof(fi_cq_tagged_entry));
  static_assert(offsetof(protocol::CompletionEntry, tag) == offsetof(fi_cq_tagged_entry, tag));
  static_assert(offsetof(protocol::CompletionEntry, data) == offsetof(fi_cq_data_entry, data));
  static_assert(offsetof(protocol::CompletionEntry, length) == offsetof(fi_cq_msg_entry, len));

  /// The additional fields of an entry that is an error. x_errors is sorted by position.
  struct Failure {
    uint64_t position;
    size_t overflow;
    int error;
  };

  static size_t capacity_for(size_t size_hint) noexcept;
  [[gnu::cold]] protocol::CompletionEntry& overrun() noexcept;
  void find_next_error() noexcept {
    x_next_error = x_errors.size() ? x_errors[x_errors.head()].position : kNone;
  }

  GrowingRing<Entry> x_entries;
  uint64_t x_next_error = kNone;  ///< position of the first error
  bool x_overrun = false;         ///< completions were lost; never reset
  protocol::CompletionEntry x_lost{};
  GrowingRing<Failure> x_errors;
};

}  // namespace erdma::fabric
