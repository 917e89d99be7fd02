#pragma once

#include <deque>

#include "protocol/completion.h"

namespace erdma::fake {

/// Remembers what it was told, in order.
class CompletionSink final : public protocol::CompletionSink {
 public:
  void complete(const protocol::Completion& completion) noexcept override {
    protocol::ErrorCompletion entry;
    static_cast<protocol::Completion&>(entry) = completion;
    entries.push_back(entry);
  }
  void fail(const protocol::ErrorCompletion& completion) noexcept override {
    entries.push_back(completion);
  }
  protocol::ErrorCompletion take() {
    protocol::ErrorCompletion first = entries.front();
    entries.pop_front();
    return first;
  }

  std::deque<protocol::ErrorCompletion> entries;
};

}  // namespace erdma::fake
