#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "transport/verbs/block_pool.h"
#include "transport/verbs/handles.h"

namespace erdma::transport::verbs {

class PacketSender;
struct Transfer;

/// Names a work request in its completion: connection, direction and number. All are checked, so a
/// completion that comes after its queue pair is gone finds no request.
struct WorkId {
  static constexpr uint64_t kReceive = uint64_t(1) << 31;
  static constexpr uint32_t kNumberMask = 0x7fff'ffff;
  static uint64_t send(uint32_t connection, uint32_t number) noexcept {
    return uint64_t(connection) << 32 | (number & kNumberMask);
  }
  static uint64_t receive(uint32_t connection, uint32_t number) noexcept {
    return send(connection, number) | kReceive;
  }
};

/// What a posted work request holds until it completes.
struct Work {
  /// direct: a short READ or WRITE that is the whole transfer; flush: the READ behind a transfer's
  /// WRITEs; read, write: of the fast path, which has no transfer.
  enum class Type : uint8_t { packet, block, piece, direct, flush, heartbeat, read, write } type;
  uint32_t bytes;  ///< piece, read, write
  BlockPool::Block
      block;  ///< block; piece that bounces; direct that has one; for READs, a slot of ReadBuffers
  union {
    Transfer* transfer;  ///< piece, direct, flush
    void* local;         ///< read: the destination
  };
  union {
    uint64_t offset;  ///< piece: within the transfer
    uint64_t token;   ///< read, write
  };
};

/// The account of one send queue. The device counts its own building blocks and frees them only
/// when a signalled request completes. So this class decides what fits: never more outstanding
/// requests than the depth, and one in a few is signalled. A completion also completes everything
/// before it, except READs: siw reports a SEND as soon as it is on its way, even while an earlier
/// READ still waits for its response. So each READ is signalled and completes by itself.
class SendQueue {
 public:
  /// `depth`: a power of two. -FI_ENOMEM.
  int start(ibv_qp* qp, uint32_t connection, uint32_t depth) noexcept {
    x_work.reset(new (std::nothrow) Work[depth]);
    x_states.reset(new (std::nothrow) State[depth]());
    if (!x_work || !x_states) return -FI_ENOMEM;
    x_qp = qp;
    x_connection = connection;
    x_depth = depth;
    x_signal_every = std::clamp(depth / 4, 1u, 16u);
    return 0;
  }

  uint32_t outstanding() const noexcept { return x_head - x_tail; }
  uint32_t room() const noexcept { return x_depth - outstanding(); }

  /// Numbers a request (its opcode is set) and takes a place for it; there must be room.
  /// `must_signal`: the request holds a resource, or its completion is waited for.
  Work& append(ibv_send_wr& request, bool must_signal) noexcept {
    Work& work = x_work[x_head & (x_depth - 1)];
    const bool read = request.opcode == IBV_WR_RDMA_READ;
    x_states[x_head & (x_depth - 1)] = read ? State::read : State::other;
    request.wr_id = WorkId::send(x_connection, x_head);
    request.next = nullptr;
    if (must_signal || ++x_unsignalled >= x_signal_every) {
      request.send_flags |= IBV_SEND_SIGNALED;
      x_unsignalled = 0;
    }
    ++x_head;
    return work;
  }
  /// The number of the last request.
  uint32_t latest() const noexcept { return x_head - 1; }
  bool is_outstanding(uint32_t number) noexcept {
    return number - x_tail < outstanding() && state(number) != State::complete;
  }
  /// The last appended request was not posted after all. The next one is signalled, because the
  /// completion of earlier requests may be needed.
  void drop_last() noexcept {
    --x_head;
    x_unsignalled = x_signal_every;
  }
  /// Posts appended requests. 0 or a negative errno; -FI_EAGAIN: the queue is unexpectedly full.
  int post(ibv_send_wr& first) noexcept {
    ibv_send_wr* bad = nullptr;
    const int rc = ibv_post_send(x_qp, &first, &bad);
    return rc ? post_error(rc) : 0;
  }

  /// Completes the request with this number, and those that its completion implies. False: it is
  /// not outstanding.
  template <typename Function>
  [[nodiscard]] bool complete(uint64_t wr_id, Function&& done) noexcept {
    const uint32_t ahead = (uint32_t(wr_id) - x_tail) & WorkId::kNumberMask;
    if (ahead >= outstanding() || state(x_tail + ahead) == State::complete) return false;
    for (uint32_t i = 0; i <= ahead; ++i)
      if (state(x_tail + i) == State::other || i == ahead) finish(x_tail + i, done);
    while (x_tail != x_head && state(x_tail) == State::complete) ++x_tail;
    return true;
  }
  /// The queue pair is destroyed: the device no longer touches any of the requests.
  template <typename Function>
  void drop_all(Function&& done) noexcept {
    for (; x_tail != x_head; ++x_tail)
      if (state(x_tail) != State::complete) finish(x_tail, done);
  }

 private:
  enum class State : uint8_t { complete, read, other };

  State& state(uint32_t number) noexcept { return x_states[number & (x_depth - 1)]; }
  template <typename Function>
  void finish(uint32_t number, Function& done) noexcept {
    state(number) = State::complete;
    done(x_work[number & (x_depth - 1)]);
  }

  ibv_qp* x_qp = nullptr;
  uint32_t x_connection = 0;
  uint32_t x_depth = 0;
  uint32_t x_head = 0;  ///< number of the next request
  uint32_t x_tail = 0;  ///< number of the oldest that is not complete
  uint32_t x_signal_every = 1;
  uint32_t x_unsignalled = 0;
  std::unique_ptr<Work[]> x_work;
  std::unique_ptr<State[]> x_states;
};

/// Small packets of one connection that share a doorbell (SendHint::more). At most one connection
/// at a time has any; they are posted with its next packet without the hint, before a request of
/// another connection, or in the next poll().
struct Chain {
  static constexpr unsigned kLength = 16;
  static constexpr size_t kMaxInline =
      256;  ///< longer packets are copied to a block, whatever the device allows

  PacketSender* owner = nullptr;
  unsigned count = 0;
  ibv_send_wr requests[kLength];
  ibv_sge pieces[kLength];
  alignas(8) std::byte bytes[kLength][kMaxInline];
};

}  // namespace erdma::transport::verbs
