#pragma once

#include "protocol/arguments.h"
#include "protocol/grants.h"
#include "protocol/retractable_rma.h"
#include "protocol/sends.h"

namespace erdma::protocol {

/// RMA and atomic operations, where they begin. Packets carry them to the target, whose progress
/// executes them, so they work on every path; what a target has granted is accessed directly where
/// the link can.
class RmaInitiator final : public Initiator {
 public:
  RmaInitiator(const EngineConfig& config, Sends& all, Grants& grants, Peers& peers) noexcept
      : Initiator(all),
        x_devices(config.device_memory),
        x_grants(grants),
        x_retractables(*this, all, peers) {}

  /// Before any operation. `setup` outlives this.
  void enable(const OneSidedSetup& setup) noexcept { x_setup = &setup; }

  /// False: out of memory. `sink`: null for that of its kind.
  bool post(const OneSidedArgs& args, Peer& peer, CompletionSink* sink) noexcept;
  /// A packet: bytes that were read or fetched.
  void on_result(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                 const std::byte* payload, size_t length) noexcept;
  RetractableRma& retractables() noexcept { return x_retractables; }

  // For RetractableRma.
  /// What permits direct access. Null: it goes by packets.
  Grant* usable_grant(const Send& send) noexcept;
  /// A write or a read. -FI_EAGAIN: nothing happened. `packet`: where the name of a packet goes
  /// that can be retracted; null: it need not be.
  int send_transfer(Send& send, bool shared, uint64_t* packet = nullptr) noexcept;
  /// All its packets are with the link.
  void launched(Send& send, bool shared) noexcept;

 private:
  int launch(Send& send) noexcept override;
  void on_device_fin(Send& send, int status) noexcept override;
  void on_moved(Send& send, int status) noexcept override;
  void forget(Send& send) noexcept override;

  bool keep_operands(Send& send, const OneSidedArgs& args) noexcept;
  int send_segments(Send& send) noexcept;
  int gather_from_device(const Buffers& memory, std::byte* to) noexcept;
  int send_atomic(Send& send) noexcept;
  int send_atomic_part(Send& send) noexcept;
  int launch_direct(Send& send) noexcept;
  int access(Send& send, Grant& grant) noexcept;
  void retry(Send& send, int status) noexcept;
  void leave_grant(Send& send) noexcept;
  void read_one_byte(Send& send, const Grant& grant) noexcept;

  hmem::DeviceMemory* const x_devices;  ///< null: all memory is the host's
  Grants& x_grants;
  const OneSidedSetup* x_setup = nullptr;
  util::Pool<OneSided, 16> x_operations;
  RetractableRma x_retractables;
  std::byte x_flush_sink{};  ///< read into, never looked at
};

/// Writes what the grant permits, or reads it. `until_placed`: see Link::put().
int access_directly(Send& send, const Grant& grant, bool until_placed) noexcept;

}  // namespace erdma::protocol
