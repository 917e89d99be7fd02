#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/shm/fragment_choice.h"
#include "transport/shm/options.h"
#include "util/recent_rates.h"

namespace erdma::transport::shm {

/// True if a message could have come in fragments, where these are compared with a rendezvous.
constexpr bool is_medium(uint64_t length) noexcept {
  return length > FragmentChoice::kShortest && length <= kDefaultEager;
}

/// The rates at which a receiver reads messages of medium length from its sender's memory, for each
/// class of FragmentChoice, as one word: bytes per us, 16 bits each; 0 = unknown.
class ReadRates {
 public:
  ReadRates() noexcept = default;
  explicit ReadRates(uint64_t word) noexcept : x_word(word) {}

  uint32_t of(size_t length) const noexcept { return x_word >> shift_of(length) & kMost; }
  void set(size_t length, const util::RecentRates& rates) noexcept {
    const auto rate = uint64_t(std::clamp(rates.typical() * 1000, 1.0F, float(kMost)));
    x_word = (x_word & ~(uint64_t(kMost) << shift_of(length))) | rate << shift_of(length);
  }
  uint64_t word() const noexcept { return x_word; }

 private:
  static constexpr uint32_t kMost = 0xffff;
  static_assert(FragmentChoice::kClasses <= 4);
  static unsigned shift_of(size_t length) noexcept {
    return unsigned(FragmentChoice::class_of(length)) * 16;
  }

  uint64_t x_word = 0;
};

/// Measures these rates in the receiver's calls.
class ReadTimer {
 public:
  /// Returns whether the message that is read now shall be timed: the first ones are, because the
  /// sender may be trying whether a rendezvous is faster.
  bool times(uint64_t length) noexcept {
    if (!is_medium(length)) return false;
    const util::RecentRates& rates = x_rates[FragmentChoice::class_of(length)];
    return ++x_reads % kTimedEvery == 0 || rates.count() < WayChoice::kTrials;
  }
  /// Of a message of `length`, `bytes` took this time. `published`: a word for the sender.
  void record(uint64_t length, uint64_t bytes, uint64_t nanoseconds,
              std::atomic<uint64_t>& published) noexcept {
    if (!is_medium(length) || bytes == 0) return;
    util::RecentRates& rates = x_rates[FragmentChoice::class_of(length)];
    rates.add(bytes, nanoseconds);
    ReadRates all(published.load(std::memory_order_relaxed));
    all.set(length, rates);
    published.store(all.word(), std::memory_order_relaxed);
  }

  static constexpr uint32_t kTimedEvery = 4;  ///< of the later messages

 private:
  util::RecentRates x_rates[FragmentChoice::kClasses];
  uint32_t x_reads = 0;
};

}  // namespace erdma::transport::shm
