#pragma once

#include <deque>

#include "protocol/completion.h"

namespace erdma::fake {

/// Records completions in order.
class CompletionSink final : public protocol::CompletionSink {
 public:
  protocol::CompletionEntry& succeed(bool report) noexcept override {
    protocol::ErrorCompletion& entry = entries.emplace_back();
    entry.report = report;
    return entry;
  }
  void fail(const protocol::ErrorCompletion& completion) noexcept override {
    entries.push_back(completion);
  }
  protocol::ErrorCompletion take() {
    protocol::ErrorCompletion first = entries.front();
    entries.pop_front();
    return first;
  }

  bool counts() const noexcept override { return counted; }

  std::deque<protocol::ErrorCompletion> entries;
  bool counted = false;
};

}  // namespace erdma::fake
