#pragma once

#include <cstddef>

#include "transport/verbs/handles.h"

namespace erdma::transport::verbs {

class PacketSender;

/// Small packets of one connection that share a doorbell (SendHint::more). At most one connection
/// at a time has any; they leave with its next packet without the hint, or in the next poll().
struct Chain {
  static constexpr unsigned kLength = 16;
  static constexpr size_t kMaxInline =
      256;  ///< more is copied to a block, whatever the device says

  PacketSender* owner = nullptr;
  unsigned count = 0;
  ibv_send_wr requests[kLength];
  ibv_sge pieces[kLength];
  alignas(8) std::byte bytes[kLength][kMaxInline];
};

}  // namespace erdma::transport::verbs
