#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/verbs/receive_regions.h"

namespace erdma::transport::verbs {

class Device;

/// Slots of one size in memory of the transport.
class ReceiveSlots {
 public:
  /// -FI_ENOMEM and others; logged with the remedy.
  int make(ReceiveRegions& regions, uint32_t slots, uint32_t slot_bytes) noexcept {
    if (const int rc = regions.take(size_t(slots) * slot_bytes, x_memory)) return rc;
    x_slots = slots;
    x_slot_bytes = slot_bytes;
    return 0;
  }
  void reset() noexcept { x_memory.reset(); }

  explicit operator bool() const noexcept { return bool(x_memory); }
  uint32_t slots() const noexcept { return x_slots; }
  uint32_t slot_bytes() const noexcept { return x_slot_bytes; }
  uint32_t lkey() const noexcept { return x_memory.lkey(); }
  std::byte* slot(uint32_t index) const noexcept {
    return x_memory.bytes() + size_t(index) * x_slot_bytes;
  }

 private:
  ReceiveRegions::Part x_memory;
  uint32_t x_slots = 0;
  uint32_t x_slot_bytes = 0;
};

/// Posted receives of one connection. They are consumed in the order of posting; number n, counted
/// from 0, takes the peer's n-th packet. The queue begins with few small receives and may grow
/// once; the peer is told from which number on.
class ReceiveQueue {
 public:
  struct Slot {
    const std::byte* bytes;
    uint32_t capacity;
  };

  /// Makes the small slots. Any thread.
  int make(ReceiveRegions& regions, uint32_t slots, uint32_t slot_bytes) noexcept;
  /// Posts the first receives. The queue pair is at least INIT.
  int start(ibv_qp* qp, uint32_t connection) noexcept;

  /// Posts larger receives behind the posted ones. Takes `large` even if that fails, because some
  /// may be posted. 0 or a negative errno: the connection is broken.
  int grow(ReceiveSlots& large) noexcept;
  bool grown() const noexcept { return bool(x_large); }
  uint64_t grown_from() const noexcept { return x_grown_from; }
  uint32_t small_slots() const noexcept { return x_small_slots; }
  uint32_t large_bytes() const noexcept { return x_large.slot_bytes(); }

  /// Gives the receive that `wr_id` completed. False: it is not the next one, so completions were
  /// lost.
  [[nodiscard]] bool take(uint64_t wr_id, Slot& slot) noexcept;
  /// Makes the last receive that take() gave the next one again. Returns its bytes.
  std::byte* put_back() noexcept;
  uint32_t outstanding() const noexcept { return uint32_t(x_posted - x_consumed); }
  uint64_t taken() const noexcept { return x_consumed; }
  /// Consumed receives that may be posted again.
  uint32_t idle() const noexcept { return x_target - uint32_t(x_posted - later(x_consumed)); }
  uint32_t batch() const noexcept { return x_batch; }
  /// Posts all idle ones and sets `count` to their number. 0 or a negative errno: the connection is
  /// broken.
  int repost(uint32_t& count) noexcept;
  /// True once the last small receive was consumed and its memory was freed.
  bool drop_small() noexcept;

 private:
  /// Small receives that are still posted do not count against the large ones.
  uint64_t later(uint64_t number) const noexcept {
    return number < x_grown_from && x_large ? x_grown_from : number;
  }
  int post(uint32_t count) noexcept;

  ibv_qp* x_qp = nullptr;
  uint32_t x_connection = 0;
  uint64_t x_posted = 0;    ///< number of the next receive to post
  uint64_t x_consumed = 0;  ///< number of the next receive to complete
  uint64_t x_grown_from = UINT64_MAX;
  uint32_t x_post_at = 0;  ///< slot of the next receive to post
  uint32_t x_take_at = 0;  ///< slot of the next receive to complete
  uint32_t x_target = 0;   ///< receives that should be posted
  uint32_t x_batch = 1;
  uint32_t x_small_slots = 0;
  ReceiveSlots x_small;
  ReceiveSlots x_large;
};

}  // namespace erdma::transport::verbs
