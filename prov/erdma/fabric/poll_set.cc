#include "fabric/poll_set.h"

#include <algorithm>

#include <rdma/fi_errno.h>

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/domain.h"
#include "fabric/eq.h"

namespace erdma::fabric {
namespace {

/// Event queues belong to no domain, so any of them may be a member.
bool can_join(fid_t object, const util::DomainLock& lock) noexcept {
  switch (object->fclass) {
    case FI_CLASS_CQ:
      return CompletionQueue::from(object).takes(lock);
    case FI_CLASS_CNTR:
      return Counter::from(object).takes(lock);
    default:
      return object->fclass == FI_CLASS_EQ;
  }
}

void bind(fid_t object, bool on) noexcept {
  const auto count = [on](auto& member) { on ? member.bound() : member.unbound(); };
  switch (object->fclass) {
    case FI_CLASS_CQ:
      return count(CompletionQueue::from(object));
    case FI_CLASS_CNTR:
      return count(Counter::from(object));
    default:
      return count(EventQueue::from(object));
  }
}

/// `told`: the result is reported to the application.
bool has_news(fid_t object, bool told) noexcept {
  switch (object->fclass) {
    case FI_CLASS_CQ:
      return CompletionQueue::from(object).poll();
    case FI_CLASS_CNTR:
      return Counter::from(object).poll(told);
    default:
      return EventQueue::from(object).try_wait() == -FI_EAGAIN;
  }
}

void show_core(fid_t object) noexcept {
  if (object->fclass == FI_CLASS_CQ) CompletionQueue::from(object).shows_core(false);
  if (object->fclass == FI_CLASS_CNTR) Counter::from(object).shows_core(false);
}

}  // namespace

int PollSet::add(fid_t object, uint64_t flags) {
  if (!object || flags || !can_join(object, x_domain.lock())) return -FI_EINVAL;
  const util::Guard guard(x_domain.lock());
  if (std::find(x_members.begin(), x_members.end(), object) != x_members.end()) return -FI_EALREADY;
  x_members.push_back(object);
  bind(object, true);
  return 0;
}

int PollSet::remove(fid_t object, uint64_t flags) noexcept {
  if (!object || flags) return -FI_EINVAL;
  const util::Guard guard(x_domain.lock());
  const auto found = std::find(x_members.begin(), x_members.end(), object);
  if (found == x_members.end()) return -FI_EINVAL;
  bind(object, false);
  x_members.erase(found);
  x_first = 0;
  return 0;
}

int PollSet::poll(void** contexts, int count) noexcept {
  if (count < 0 || (count > 0 && !contexts)) return -FI_EINVAL;
  int found = 0;
  Rest next = Rest::none;
  {
    const util::DataGuard guard(x_domain.lock());
    const size_t members = x_members.size();
    size_t left_out = members;
    for (size_t i = 0; i < members; ++i) {
      const size_t at = (x_first + i) % members;
      const bool room = found < count;
      if (!room && left_out == members) left_out = at;
      if (has_news(x_members[at], room) && room) contexts[found++] = x_members[at]->context;
    }
    if (left_out < members) x_first = left_out;
    if (x_idle_reads.should_rest(found > 0)) next = Rest::yield_untimed;
    // A poll set never sleeps, so how long a yield takes does not matter.
    if (next != Rest::none && x_idle_reads.looks())
      std::for_each(x_members.begin(), x_members.end(), show_core);
  }
  if (next != Rest::none) x_idle_reads.yield(next);
  return found;
}

int PollSet::close() noexcept {
  {
    const util::Guard guard(x_domain.lock());
    for (fid_t member : x_members) bind(member, false);
  }
  delete this;
  return 0;
}

// --- C entry points -----------------------------------------------------------------------------

namespace {

fi_ops_poll g_poll_ops = {
    .size = sizeof(fi_ops_poll),
    .poll = entry<&PollSet::poll>,
    .poll_add = entry<&PollSet::add>,
    .poll_del = entry<&PollSet::remove>,
};

}  // namespace

PollSet::PollSet(Domain& domain) noexcept
    : FidObject(FI_CLASS_POLL, nullptr, &domain.children()), x_domain(domain) {
  ops = &g_poll_ops;
}

int open_poll_set(fid_domain* fid, fi_poll_attr* attr, fid_poll** set) noexcept {
  if (!set || (attr && attr->flags)) return -FI_EINVAL;
  return abi_call([&] {
    *set = new PollSet(Domain::from(fid));
    return 0;
  });
}

}  // namespace erdma::fabric
