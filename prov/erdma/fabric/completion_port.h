#pragma once

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "protocol/completion.h"

namespace erdma::fabric {

/// Where the completions of one direction of an endpoint go: a CQ, a counter, both or neither.
class CompletionPort final : public protocol::CompletionSink {
 public:
  explicit CompletionPort(const void* owner) noexcept : x_owner(owner) {}

  void complete(const protocol::Completion& completion) noexcept override {
    if (cntr) cntr->add_success(1);
    if (cq && completion.report) [[likely]]
      cq->push(completion, x_owner);
  }
  void fail(const protocol::ErrorCompletion& completion) noexcept override {
    if (cntr) cntr->add_failure();
    if (cq) cq->push_error(completion, x_owner);
  }

  CompletionQueue* cq = nullptr;
  Counter* cntr = nullptr;
  bool selective = false;  ///< FI_SELECTIVE_COMPLETION

 private:
  const void* x_owner;  ///< the endpoint, for purge()
};

}  // namespace erdma::fabric
