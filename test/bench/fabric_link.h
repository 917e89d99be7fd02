#pragma once

#include <sched.h>

#include "exchange.h"

namespace erdma::bench {

/// A Link (see exchange.h) over the provider of FI_PROVIDER. It must outlive its operations.
class FabricLink {
 public:
  explicit FabricLink(Side& side, bool yields = false)
      : x_side(side),
        x_from(side.other),
        x_yields(yields),
        x_receives(kWindow),
        x_sends(kWindow * 2),
        x_inject(side.node.info().tx_attr->inject_size) {
    for (fi_context2& context : x_sends) x_free.push_back(&context);
  }

  bool first() const noexcept { return x_side.first; }
  int sending() const noexcept { return int(x_sends.size() - x_free.size()); }
  void from_any(bool any) noexcept { x_from = any ? FI_ADDR_UNSPEC : x_side.other; }

  void post(char* data, size_t length, uint64_t tag, uint64_t ignore, unsigned slot) {
    ssize_t rc;
    while ((rc = fi_trecv(x_side.node.ep(), data, length, nullptr, x_from, tag, ignore,
                          &x_receives[slot])) == -FI_EAGAIN) {
      fi_cq_read(x_side.node.cq(), nullptr, 0);
    }
    clients::must(int(rc), "fi_trecv");
  }

  /// Completions of receives that come while a send waits for room are kept for poll().
  void send(const char* data, size_t length, uint64_t tag) {
    fi_context2* const context = x_free.back();
    x_free.pop_back();
    ssize_t rc;
    while ((rc = fi_tsend(x_side.node.ep(), data, length, nullptr, x_side.other, tag, context)) ==
           -FI_EAGAIN) {
      read();
    }
    clients::must(int(rc), "fi_tsend");
  }

  void put(const char* data, size_t length, uint64_t tag) {
    if (length > x_inject) return send(data, length, tag);
    ssize_t rc;
    while ((rc = fi_tinject(x_side.node.ep(), data, length, x_side.other, tag)) == -FI_EAGAIN)
      read();
    clients::must(int(rc), "fi_tinject");
  }

  template <class F>
  void poll(F&& received) {
    read();
    for (size_t i = 0; i < x_done.size(); ++i) received(x_done[i].first, x_done[i].second);
    x_done.clear();
  }

 private:
  void read() {
    fi_cq_tagged_entry entries[16];
    const int count = read_completions(x_side, entries);
    for (int i = 0; i < count; ++i) {
      auto* const context = static_cast<fi_context2*>(entries[i].op_context);
      if (context >= x_receives.data() && context < x_receives.data() + x_receives.size())
        x_done.emplace_back(unsigned(context - x_receives.data()), entries[i].len);
      else
        x_free.push_back(context);
    }
    if (x_yields && count == 0) ::sched_yield();
  }

  Side& x_side;
  fi_addr_t x_from;
  const bool x_yields;
  std::vector<fi_context2> x_receives;
  std::vector<fi_context2> x_sends;
  std::vector<fi_context2*> x_free;
  std::vector<std::pair<unsigned, size_t>> x_done;
  const size_t x_inject;
};

}  // namespace erdma::bench
