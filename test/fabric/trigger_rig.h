#pragma once

#include <rdma/fi_trigger.h>

#include "fabric/one_sided_rig.h"

namespace erdma::test {

inline Ask trigger_ask(fi_progress progress = FI_PROGRESS_MANUAL) {
  Ask ask = one_sided_ask();
  ask.caps |= FI_TRIGGER;
  ask.threading = FI_THREAD_SAFE;
  ask.progress = progress;
  return ask;
}

inline fid_cntr* open_cntr(Root& root) {
  fi_cntr_attr attr{};
  attr.wait_obj = FI_WAIT_UNSPEC;
  fid_cntr* cntr = nullptr;
  ck_assert_int_eq(fi_cntr_open(root.domain, &attr, &cntr, nullptr), 0);
  return cntr;
}

/// Two endpoints of one domain, of which the first knows the second, and registered memory.
struct TriggerWorld {
  explicit TriggerWorld(fi_progress progress = FI_PROGRESS_MANUAL)
      : root(trigger_ask(progress)),
        a(root),
        b(root),
        to(a.insert(b)),
        memory(1 << 20),
        region(root, memory.data(), memory.size()),
        start(open_cntr(root)),
        done(open_cntr(root)) {}
  TriggerWorld(const TriggerWorld&) = delete;
  TriggerWorld& operator=(const TriggerWorld&) = delete;
  ~TriggerWorld() { close_counters(); }
  void close_counters() {
    for (fid_cntr** cntr : {&start, &done}) {
      if (*cntr) ck_assert_int_eq(fi_close(&(*cntr)->fid), 0);
      *cntr = nullptr;
    }
  }

  /// Checks that neither endpoint has a completion.
  void expect_silence() {
    fi_cq_tagged_entry entry;
    for (Port* port : {&a, &b, &a, &b})
      ck_assert_int_eq(int(fi_cq_read(port->cq, &entry, 1)), -FI_EAGAIN);
  }
  fi_triggered_context condition(uint64_t threshold) {
    fi_triggered_context context{};
    context.event_type = FI_TRIGGER_THRESHOLD;
    context.trigger.threshold = {start, threshold};
    return context;
  }
  fi_deferred_work work(fi_op_type type, uint64_t threshold) {
    fi_deferred_work made{};
    made.threshold = threshold;
    made.triggering_cntr = start;
    made.completion_cntr = type < FI_OP_CNTR_SET ? done : nullptr;
    made.op_type = type;
    return made;
  }
  int queue(fi_deferred_work& work) { return fi_control(&root.domain->fid, FI_QUEUE_WORK, &work); }
  void add(uint64_t events = 1) { ck_assert_int_eq(fi_cntr_add(start, events), 0); }
  void await(uint64_t count) { ck_assert_int_eq(fi_cntr_wait(done, count, -1), 0); }
  uint64_t at(size_t offset) const { return uint64_t(memory.data() + offset); }

  Root root;
  Port a, b;
  fi_addr_t to;
  std::vector<char> memory;
  Region region;
  fid_cntr *start, *done;
};

}  // namespace erdma::test
