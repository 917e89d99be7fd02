#pragma once

#include "libcheck.h"
#include "protocol/one_sided_rig.h"

namespace erdma::test {

/// A pair with direct access at both sides. The initiator does not know the region yet.
struct DirectPair : OneSidedPair {
  explicit DirectPair(bool has_short, uint64_t access = kAll,
                      protocol::EngineConfig config = kConfig)
      : OneSidedPair(1 << 18, access, config) {
    a.transport.behaviour.opens = b.transport.behaviour.opens = true;
    a.transport.behaviour.has_short = has_short;
  }
  /// Makes the operations after which the target grants the region.
  void introduce() {
    for (int i = 0; i < 2; ++i) {
      char byte = 0;
      must(region.access & FI_REMOTE_READ
               ? initiator.read(1, &byte, 1, memory.data(), kKey, &g_one)
               : initiator.write(1, memory.data(), 1, memory.data(), kKey, &g_one));
      run_until_idle();
    }
    forget();
  }
  void forget() {
    for (OneSidedNode* node : {&initiator, &target})
      for (auto* sink : {&node->reads, &node->writes, &node->remote_reads, &node->remote_writes})
        sink->entries.clear();
  }
  /// Drives only the initiator, so that operations complete without the target.
  void alone() {
    while (a.engine.progress() > 0) {
    }
  }
  size_t direct() { return a_to_b().direct_count; }
  void close_region() {
    target.regions.by_key.clear();
    b.engine.grants().revoke(kKey);
  }
};

}  // namespace erdma::test
