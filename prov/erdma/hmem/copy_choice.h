#pragma once

#include <cstddef>
#include <cstdint>

#include "util/recent_rates.h"

namespace erdma::hmem {

/// How a processor copies a payload.
enum class CopyMethod : uint8_t {
  loop,     ///< line by line
  library,  ///< memcpy()
  string,   ///< one instruction for the whole payload (copy_string)
  stream,   ///< stores past the cache
};

/// Learns, per class of length, by which method this thread copies payloads fastest from or into
/// lines that another core used last. That depends on the processor and on how far apart the cores
/// are: `rep movsb` needs not read the lines that it overwrites, and is twice as fast as a loop on
/// some processors, and five times slower on others. One copy in a few is timed. Table-tested; uses
/// no clock. Streaming also costs the receiver, which must read the memory then, so it is used only
/// while the other methods are slow.
class CopyChoice {
 public:
  constexpr CopyChoice() noexcept { x_classes[0].slow = kSlowIfShort; }

  /// The methods that are possible besides the loop and the library.
  struct Offer {
    bool string, stream;
  };
  struct Choice {
    CopyMethod method;
    bool timed;  ///< record() shall be told how long this copy takes
  };
  /// Chooses for the payload that is copied next.
  Choice choose(size_t length, Offer offer) noexcept {
    if (length < kLeast) return {CopyMethod::loop, false};
    SizeClass& own = x_classes[class_of(length)];
    if (++own.copies < own.pause) [[likely]]
      return {own.best, false};
    own.copies = 0;
    return {own.on_trial(offer), true};
  }
  /// True if most payloads of this length are streamed.
  bool streams(size_t length) const noexcept {
    return length >= kLeast && x_classes[class_of(length)].best == CopyMethod::stream;
  }
  void record(size_t length, CopyMethod used, uint64_t nanoseconds) noexcept;

  static constexpr size_t kLeast = 1024;  ///< shorter payloads are copied by the loop
  /// Copies from one that is timed to the next: until all methods are known, and at most. Methods
  /// that are far slower than the best are tried in half of the timed copies.
  static constexpr uint32_t kFirstPause = 4;
  static constexpr uint32_t kLongestPause = 512;
  static constexpr unsigned kTrials = 2;  ///< timed copies of each method, to compare it
  /// Bytes per nanosecond, up to the end of the stores; below that a method is slow. Near cores
  /// reach 10 to 40, and 6 to 20 with payloads of up to 2 KiB, far ones 2 to 6 and 1 to 4.
  static constexpr float kSlow = 8, kSlowIfShort = 4;

 private:
  static constexpr size_t kMethods = 4;
  /// Up to 2, 4 and 8 KiB, and above.
  static constexpr size_t kClasses = 4;
  struct SizeClass {
    util::RecentRates rates[kMethods];
    uint32_t copies = 0;  ///< since the last one that was timed
    uint32_t pause = kFirstPause;
    CopyMethod best = CopyMethod::loop;
    CopyMethod other = CopyMethod::loop;  ///< the last one tried besides the best
    bool tries_other = false;
    bool knows_all = false;  ///< what is offered was timed kTrials times
    float slow = kSlow;      ///< see may_stream()
    const util::RecentRates& rate(CopyMethod method) const noexcept {
      return rates[size_t(method)];
    }
    bool offered(CopyMethod method, Offer offer) const noexcept;
    /// The fastest of the others is slow. Where streaming is the best, somewhat more is slow, so
    /// that a rate near the limit does not lead to and fro.
    bool may_stream() const noexcept;
    void choose_best() noexcept;
    /// The best, or in every other call one that may be better.
    CopyMethod on_trial(Offer offer) noexcept;
  };
  static size_t class_of(size_t length) noexcept;

  SizeClass x_classes[kClasses];
};

}  // namespace erdma::hmem
