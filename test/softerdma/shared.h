#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

/// Memory that the processes of one fabric share, in files of the state folder. Each word has one
/// writer, unless its comment names another. Processes may die between any two instructions.
namespace softerdma {

inline constexpr uint32_t kMaxProcesses = 1024;
inline constexpr uint32_t kMaxDevices = 256;
inline constexpr uint32_t kDevicesPerProcess = 8;
/// The upper 10 of the 24 bits of a queue pair's number are the slot of its process.
inline constexpr uint32_t kQpBits = 14;
inline constexpr uint32_t kQpsPerProcess = 1u << kQpBits;
inline constexpr uint32_t kPayloadRingBytes = 32 * 1024;

struct ProcessEntry {
  std::atomic<uint32_t> generation;
  std::atomic<int32_t> pid;
  std::atomic<uint64_t> pid_namespace;
  /// Slot + 1 of the process that executes an atomic operation on this process's memory.
  std::atomic<uint32_t> atomics_lock;
  /// Numbers of objects on each device, as the limits of a device hold for the whole host.
  struct OnDevice {
    std::atomic<uint32_t> ip;
    std::atomic<uint32_t> qps;
    std::atomic<uint32_t> mrs;
  } devices[kDevicesPerProcess];
};

struct DeviceEntry {
  std::atomic<uint32_t> ip;  ///< 0 = free; claimed by compare-and-swap
  std::atomic<uint32_t> up;  ///< written by any process
};

/// File "fabric". A process owns entry i while it holds the record lock of byte i.
struct FabricShared {
  static constexpr uint32_t kMagic = 0x50f7e4d3;
  std::atomic<uint32_t> magic;
  std::atomic<uint32_t> next_port;  ///< written by any process
  DeviceEntry devices[kMaxDevices];
  ProcessEntry processes[kMaxProcesses];
};

/// Entry of file "mr". The key is stored last and cleared first.
struct MrEntry {
  std::atomic<uint32_t> key;  ///< 0 = none
  uint32_t access;
  uint32_t pd;
  /// 1 + adapter << 16 + GPU if stores to this memory of a GPU are posted, otherwise 0.
  uint32_t posted;
  uint64_t iova;
  uint64_t address;
  uint64_t length;
  uint64_t chance;  ///< Limits::posted if `posted` is set
  uint64_t spare[2];

  uint32_t adapter() const noexcept { return (posted - 1) >> 16; }
  uint32_t gpu() const noexcept { return (posted - 1) & 0xffff; }
};
static_assert(sizeof(MrEntry) == 64);

struct RqEntry {
  std::atomic<uint64_t> sequence;  ///< position + 1 once the entry is complete
  uint64_t wr_id;
  uint64_t address;
  uint32_t length;
  uint32_t lkey;
};
static_assert(sizeof(RqEntry) == 32);

/// Head of a file "q<n>"; RqEntry[rq_size] and the payload ring follow.
struct QpShared {
  // The owner writes these.
  alignas(64) std::atomic<uint32_t> state;  ///< ibv_qp_state
  std::atomic<uint32_t> peer_qpn;           ///< peer whose packets are accepted
  uint32_t qpn;
  uint32_t generation;  ///< generation of the owner's process entry
  uint32_t device_ip;
  uint32_t pd;
  uint32_t recv_cq;
  uint32_t rq_size;
  std::atomic<uint32_t> access;  ///< rights of the peer (modify_qp)
  uint32_t compat;
  // The peer writes these.
  /// busy_word() of the process that accesses the owner's memory, or 0.
  alignas(64) std::atomic<uint64_t> busy;
  std::atomic<uint32_t> heard;      ///< a packet has arrived
  std::atomic<uint32_t> region;     ///< key of the owner's region that `busy` accesses; 0: any
  std::atomic<uint64_t> rq_head;    ///< number of receives consumed
  std::atomic<uint64_t> ring_tail;  ///< bytes of the payload ring that were used
  // The owner writes this.
  alignas(64) std::atomic<uint64_t> ring_head;  ///< bytes of the payload ring that were freed

  RqEntry* rq() noexcept { return reinterpret_cast<RqEntry*>(this + 1); }
  std::byte* ring() noexcept { return reinterpret_cast<std::byte*>(rq() + rq_size); }
  static uint64_t busy_word(uint32_t slot, uint32_t generation) noexcept {
    return uint64_t{generation} << 32 | (slot + 1);
  }
  static size_t bytes(uint32_t rq_size) noexcept {
    return sizeof(QpShared) + rq_size * sizeof(RqEntry) + kPayloadRingBytes;
  }
};
static_assert(sizeof(QpShared) == 192);

/// A completion written by another process or by another queue pair of this one. state = phase <<
/// 48 | slot of the owner's process << 32 | low 32 bits of the position of slot 0 in the same lap.
/// Thus a file of zeros is an empty queue.
struct alignas(64) CqSlot {
  static constexpr size_t kInline = 64;
  enum Phase : uint64_t { free = 0, claimed = 1, full = 2, dropped = 3 };
  enum Flags : uint8_t { with_imm = 1, solicited = 2, in_ring = 4 };

  std::atomic<uint64_t> state;
  uint64_t wr_id;
  uint64_t address;  ///< target of the payload when the completion is polled
  uint32_t qpn;
  uint32_t length;
  uint32_t imm;
  uint8_t opcode;
  uint8_t status;
  uint8_t flags;
  uint8_t payload;  ///< number of bytes in data[]
  uint32_t lkey;    ///< key of `address`
  uint32_t reserved;
  // The payload has a cache line of its own, as a NIC writes completion and payload to different
  // lines. Thus receiving 8 bytes costs the same as 40.
  union alignas(64) {
    uint64_t ring_end;  ///< with in_ring: the payload ring is free up to here after the poll
    std::byte data[kInline];
  };

  static constexpr Phase phase(uint64_t word) noexcept { return static_cast<Phase>(word >> 48); }
  static constexpr uint32_t owner(uint64_t word) noexcept { return word >> 32 & 0xffff; }
};
static_assert(sizeof(CqSlot) == 128);

/// Head of a file "c<n>", followed by CqSlot[size]. Producers claim slots by compare-and-swap, so
/// the slot names its owner if a producer dies.
struct CqShared {
  enum Armed : uint32_t { disarmed = 0, solicited_only = 1, any = 2 };
  alignas(64) uint32_t number;
  uint32_t size;
  uint32_t channel;  ///< number of the completion channel "e<n>"; 0 = none
  std::atomic<uint32_t> armed;
  alignas(64) std::atomic<uint64_t> tail;  ///< first slot to try as free; any producer writes it
  std::atomic<uint64_t> overruns;          ///< written by any producer
  CqSlot* slots() noexcept { return reinterpret_cast<CqSlot*>(this + 1); }

  bool at(uint64_t word, uint64_t position) const noexcept {
    return static_cast<uint32_t>(word) == static_cast<uint32_t>(position & ~uint64_t{size - 1});
  }
  uint64_t word(CqSlot::Phase phase, uint32_t owner, uint64_t position) const noexcept {
    return static_cast<uint64_t>(phase) << 48 | static_cast<uint64_t>(owner & 0xffff) << 32 |
           (position & ~uint64_t{size - 1} & 0xffffffff);
  }
};
static_assert(sizeof(CqShared) == 128);

enum class MessageType : uint32_t {
  stop,        ///< ends this process's own thread
  kick,        ///< tells the own thread that work requests wait
  killed,      ///< the connection of `qpn` broke a rule; `status` is a Cause
  closed,      ///< the other side of `qpn` is gone
  request,     ///< rdma_cm: a connect request
  accepted,    ///< rdma_cm: the request was accepted
  rejected,    ///< rdma_cm: the request was rejected
  port_event,  ///< a port changed its state: `source_ip`, `status` = up
  moved,       ///< the network interface of a port changed its hardware address: `source_ip`
};

/// A message to a thread, through the named pipe "wake" of its process. It has at most PIPE_BUF
/// bytes, so that it is written whole or not at all.
struct Message {
  MessageType type;
  uint32_t from_slot;
  uint32_t from_generation;
  uint32_t qpn;
  uint32_t peer_qpn;
  int32_t status;
  uint64_t id;
  uint64_t peer_id;
  uint32_t source_ip;
  uint32_t target_ip;
  uint16_t source_port;
  uint16_t target_port;
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t private_length;
  uint8_t by_application;
  unsigned char private_data[256];
};
static_assert(sizeof(Message) <= 512);

/// The reason for which a connection was killed.
enum class Cause : int32_t {
  none,
  no_receive,
  too_long,
  remote_access,
  local_access,
  passive_first,
  fault,
};

}  // namespace softerdma
