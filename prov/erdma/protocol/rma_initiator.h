#pragma once

#include "protocol/arguments.h"
#include "protocol/grants.h"
#include "protocol/retractable_rma.h"
#include "protocol/sends.h"

namespace erdma::protocol {

/// The initiator's side of RMA and atomic operations. Packets carry an operation to the target,
/// whose progress executes it; this works on every link. Memory that the target has granted is
/// accessed directly if the link can do it.
class RmaInitiator final : public Initiator {
 public:
  RmaInitiator(const EngineConfig& config, Sends& all, Grants& grants, Peers& peers) noexcept
      : Initiator(all),
        x_devices(config.device_memory),
        x_grants(grants),
        x_retractables(*this, all, peers) {}

  /// To be called before any operation. `setup` outlives this object.
  void enable(const OneSidedSetup& setup) noexcept { x_setup = &setup; }

  /// False: out of memory. `sink` is null for the sink of reads or of writes.
  bool post(const OneSidedArgs& args, Peer& peer, CompletionSink* sink) noexcept;
  /// Handles a result packet: bytes that were read or fetched.
  void on_result(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                 const std::byte* payload, size_t length) noexcept;
  RetractableRma& retractables() noexcept { return x_retractables; }

  // For RetractableRma.
  /// Returns the grant for direct access. Null: use packets.
  Grant* usable_grant(const Send& send) noexcept;
  /// Sends the packet of a write or read. `shared`: the packet has a remote key of the memory here
  /// instead of bytes. With `packet` the packet is retractable, and its name is stored there.
  /// -FI_EAGAIN: nothing happened.
  int send_transfer(Send& send, bool shared, uint64_t* packet = nullptr) noexcept;
  /// The link has taken all packets of the operation.
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

  hmem::DeviceMemory* const x_devices;  ///< null: all memory is host memory
  Grants& x_grants;
  const OneSidedSetup* x_setup = nullptr;
  util::Pool<OneSided, 16> x_operations;
  RetractableRma x_retractables;
  std::byte x_flush_sink{};  ///< target of reads that only flush; its value is not used
};

/// Writes or reads the granted memory. Returns as Link::put() and get(); see there for
/// `until_placed`.
int access_directly(Send& send, const Grant& grant, bool until_placed) noexcept;

}  // namespace erdma::protocol
