#pragma once

#include <optional>

#include "vm/erdma/driver.h"

/// Queues and regions of a program, used as liberdma does.
namespace ermodel::test {

inline constexpr uint32_t kAllRights =
    ERM_LOCAL_READ | ERM_LOCAL_WRITE | ERM_REMOTE_READ | ERM_REMOTE_WRITE;
inline constexpr uint32_t kPd = 3;

struct Completion {
  uint32_t queue, opcode, syndrome, index, qpn, data, size;
};

class Cq {
 public:
  Cq(Driver& driver_, uint32_t cqn_, uint32_t log_depth = 8, uint32_t eqn = 1)
      : driver(driver_),
        cqn(cqn_),
        depth(1u << log_depth),
        ring(driver.memory, uint64_t(depth) * ERM_BLOCK),
        record(driver.memory.allocate(8)) {
    request.shape = static_cast<uint32_t>(ERM_PUT(ERM_CQ_LOG_DEPTH, log_depth) | cqn);
    const uint64_t where = ring.pages.size() > 1 ? ring.table : ring.pages[0];
    request.ring_low = static_cast<uint32_t>(where);
    request.ring_high = static_cast<uint32_t>(where >> 32);
    request.place = static_cast<uint32_t>(ERM_PUT(ERM_CQ_PAGES, ring.pages.size()) |
                                          ERM_PUT(ERM_CQ_EQN, eqn) | ERM_CQ_TABLE);
    request.record = record;
    syndrome = driver.ask(ERM_CREATE_CQ, request).syndrome;
  }

  std::optional<Completion> poll() {
    const uint64_t at = uint64_t(ci & (depth - 1)) * ERM_BLOCK;
    const auto* entry = driver.memory.at<erm_completion>(ring.pages[at / kPage] + at % kPage);
    const uint32_t header = __builtin_bswap32(entry->header);
    const bool owner = header & ERM_CQE_OWNER, lap = ci & depth;
    if (owner == lap) return std::nullopt;
    ++ci;
    return Completion{static_cast<uint32_t>(ERM_GET(ERM_CQE_QUEUE, header)),
                      static_cast<uint32_t>(ERM_GET(ERM_CQE_OPCODE, header)),
                      static_cast<uint32_t>(ERM_GET(ERM_CQE_SYNDROME, header)),
                      __builtin_bswap32(entry->index),
                      __builtin_bswap32(entry->qpn),
                      entry->data,
                      __builtin_bswap32(entry->size)};
  }
  void arm(bool solicited = false) {
    *driver.memory.at<uint64_t>(record) =
        ERM_PUT(ERM_CQ_DOORBELL_COUNT, armings++) | ERM_PUT(ERM_CQ_DOORBELL_CQN, cqn) |
        ERM_CQ_DOORBELL_ARMED | (solicited ? ERM_CQ_DOORBELL_SOLICITED : 0) |
        ERM_PUT(ERM_CQ_DOORBELL_EVENTS, events) | ERM_PUT(ERM_CQ_DOORBELL_CI, ci);
  }
  /// Returns the number of events of this CQ since the last call, and arms the EQ again.
  size_t take_events() {
    EventQueue& eq = driver.ceqs[1];
    size_t own = 0;
    for (const Event& event : eq.take(driver.memory)) own += event.cqn() == cqn;
    eq.arm(driver.slot);
    events += static_cast<uint32_t>(own);
    return own;
  }

  Driver& driver;
  uint32_t cqn, depth, ci = 0, armings = 0, events = 0, syndrome = 0;
  Pages ring;
  uint64_t record;
  erm_create_cq request = {};
};

/// A region of `bytes` that begins in the middle of a page.
class Region {
 public:
  Region(Driver& driver_, uint32_t index, uint64_t bytes, uint32_t rights = kAllRights,
         uint32_t pd = kPd, uint64_t offset = 0x123)
      : driver(driver_),
        memory(driver.memory, bytes, offset),
        start(0x7f0000000000 + uint64_t(index) * 0x10000000 + offset),
        size(bytes),
        key(index << 8) {
    request.name = static_cast<uint32_t>(ERM_MR_VALID | index);
    request.rights = static_cast<uint32_t>(ERM_PUT(ERM_MR_PD, pd) | ERM_PUT(ERM_MR_RIGHTS, rights));
    request.start = start;
    request.size = static_cast<uint32_t>(bytes);
    const bool table = memory.pages.size() > 4;
    request.place = static_cast<uint32_t>(ERM_PUT(ERM_MR_PAGE_SHIFT, 12) |
                                          ERM_PUT(ERM_MR_TABLE, table ? 1 : 0) |
                                          ERM_PUT(ERM_MR_PAGES, memory.pages.size()));
    for (size_t i = 0; i < 4; ++i)
      request.pages[i] = table ? memory.table : i < memory.pages.size() ? memory.pages[i] : 0;
    syndrome = driver.ask(ERM_REGISTER, request).syndrome;
  }
  uint32_t deregister() {
    return driver.ask(ERM_DEREGISTER, erm_deregister_mr{0, request.name}).syndrome;
  }
  erm_sge sge(uint64_t at, uint64_t length) const {
    return {start + at, static_cast<uint32_t>(length), key};
  }

  Driver& driver;
  Pages memory;
  uint64_t start, size;
  uint32_t key, syndrome = 0;
  erm_register_mr request = {};
};

/// A work request of a program.
struct Send {
  uint32_t opcode = ERM_SEND;
  std::vector<erm_sge> parts = {};
  std::vector<uint8_t> bytes = {};  ///< inline data, if there is any
  bool is_inline = false;
  uint32_t data = 0;  ///< immediate data as on the wire, or a key
  erm_sge remote = {};
  bool signalled = true, solicited = false;
};

class Qp {
 public:
  Qp(Driver& driver_, uint32_t qpn_, Cq& sends_, Cq& receives_, uint32_t log_depth = 6,
     uint32_t pd = kPd)
      : driver(driver_),
        qpn(qpn_),
        depth(1u << log_depth),
        sends(sends_),
        receives(receives_),
        sq(driver.memory, uint64_t(depth) * ERM_BLOCK),
        rq(driver.memory, uint64_t(depth) * ERM_BLOCK),
        sq_record(driver.memory.allocate(8)),
        rq_record(driver.memory.allocate(8)) {
    request.sq_shape = static_cast<uint32_t>(ERM_PUT(ERM_QP_LOG_DEPTH, log_depth) | qpn);
    request.rq_shape = static_cast<uint32_t>(ERM_PUT(ERM_QP_LOG_DEPTH, log_depth) | pd);
    request.sq_place = sends.cqn;
    request.rq_place = receives.cqn;
    request.sq_ring = sq.table;
    request.rq_ring = rq.table;
    request.sq_pages = request.rq_pages =
        static_cast<uint32_t>(ERM_PUT(ERM_QP_PAGES, sq.pages.size()) | ERM_QP_TABLE);
    request.sq_record = sq_record;
    request.rq_record = rq_record;
    const Answer answer = driver.ask(ERM_CREATE_QP, request);
    syndrome = answer.syndrome;
    cookie = static_cast<uint32_t>(answer.first);
  }

  uint32_t modify(uint32_t state, uint32_t peer_cookie = 0, uint16_t own = 0, uint16_t peer = 0) {
    erm_modify_qp modify = {};
    modify.target = static_cast<uint32_t>(ERM_PUT(ERM_TARGET_STATE, state) | qpn);
    modify.cookie = peer_cookie;
    modify.own_port = own;
    modify.peer_port = peer;
    return driver.ask(ERM_MODIFY_QP, modify).syndrome;
  }
  void connect(Qp& peer) {
    ck_assert_uint_eq(modify(ERM_RTS, peer.cookie, 1, 2), 0);
    ck_assert_uint_eq(peer.modify(ERM_RTS, cookie, 2, 1), 0);
  }
  uint32_t destroy() { return driver.ask(ERM_DESTROY_QP, erm_destroy_queue{0, qpn}).syndrome; }

  /// Writes a request without ringing the doorbell, and returns its index.
  uint16_t write(const Send& send) {
    std::vector<uint8_t> wqe(ERM_WRITE_PARTS_AT);
    auto* common = reinterpret_cast<erm_work_request*>(wqe.data());
    common->data = send.data;
    common->length = static_cast<uint32_t>(send.bytes.size());
    for (const erm_sge& part : send.parts) common->length += part.length;
    fill_sinks(send, common);
    const bool is_send = send.opcode == ERM_SEND || send.opcode == ERM_SEND_IMM ||
                         send.opcode == ERM_SEND_INVALIDATE;
    if (is_send) wqe.resize(ERM_SEND_PARTS_AT);
    const auto append = [&wqe](const void* from, size_t length) {
      const auto* first = static_cast<const uint8_t*>(from);
      wqe.insert(wqe.end(), first, first + length);
    };
    if (send.opcode == ERM_READ)
      append(&send.remote, sizeof(erm_sge));
    else if (send.is_inline)
      append(send.bytes.data(), send.bytes.size());
    else
      append(send.parts.data(), send.parts.size() * sizeof(erm_sge));
    return put(wqe, send);
  }
  void ring_doorbell() {
    *driver.memory.at<uint64_t>(sq_record) = ERM_PUT(ERM_SQ_DOORBELL_QPN, qpn) | sq_pi;
  }
  uint16_t post(const Send& send) {
    const uint16_t index = write(send);
    ring_doorbell();
    return index;
  }
  void receive(const erm_sge& to) {
    erm_receive entry = {};
    entry.index = static_cast<uint16_t>(rq_pi + 1);
    entry.qpn = qpn;
    entry.address = to.address;
    entry.length = to.length;
    entry.key = to.key;
    copy_in(rq, rq_pi++, &entry);
    *driver.memory.at<uint64_t>(rq_record) = uint64_t(qpn) << 32 | rq_pi;
  }
  /// Copies a block to block `index` of a ring.
  void copy_in(Pages& ring, uint32_t index, const void* block) {
    const uint64_t at = uint64_t(index & (depth - 1)) * ERM_BLOCK;
    std::memcpy(driver.memory.at<char>(ring.pages[at / kPage] + at % kPage, ERM_BLOCK), block,
                ERM_BLOCK);
  }

  Driver& driver;
  uint32_t qpn, depth, cookie = 0, syndrome = 0;
  Cq &sends, &receives;
  Pages sq, rq;
  uint64_t sq_record, rq_record;
  uint16_t sq_pi = 0, rq_pi = 0;
  erm_create_qp request = {};

 private:
  static void fill_sinks(const Send& send, erm_work_request* common) {
    erm_sge sink = send.remote;
    if (send.opcode == ERM_READ) sink = send.parts.at(0);
    common->sink_key = sink.key;
    common->sink_low = static_cast<uint32_t>(sink.address);
    common->sink_high = static_cast<uint32_t>(sink.address >> 32);
  }
  uint16_t put(std::vector<uint8_t>& wqe, const Send& send) {
    const uint16_t first = sq_pi;
    const size_t blocks = (wqe.size() + ERM_BLOCK - 1) / ERM_BLOCK;
    wqe.resize(blocks * ERM_BLOCK);
    sq_pi = static_cast<uint16_t>(sq_pi + blocks);
    const size_t parts = send.is_inline            ? send.bytes.size()
                         : send.opcode == ERM_READ ? 0
                                                   : send.parts.size();
    reinterpret_cast<erm_work_request*>(wqe.data())->header =
        ERM_PUT(ERM_WORK_PARTS, parts) | ERM_PUT(ERM_WORK_BLOCKS, blocks - 1) |
        ERM_PUT(ERM_WORK_QPN, qpn) | ERM_PUT(ERM_WORK_OPCODE, send.opcode) |
        (send.is_inline ? ERM_WORK_INLINE : 0) | (send.solicited ? ERM_WORK_SOLICITED : 0) |
        (send.signalled ? ERM_WORK_SIGNALLED : 0) | sq_pi;
    for (size_t i = 0; i < blocks; ++i)
      copy_in(sq, first + static_cast<uint32_t>(i), wqe.data() + i * ERM_BLOCK);
    return first;
  }
};

}  // namespace ermodel::test
