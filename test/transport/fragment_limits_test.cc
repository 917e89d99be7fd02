#include "transport/shm/fragment_limits.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "libcheck.h"
#include "transport/shm/cma.h"

namespace {

using erdma::transport::shm::CmaCalls;
using erdma::transport::shm::FragmentLimits;
using erdma::transport::shm::Options;
using erdma::transport::shm::PathPolicy;

/// Each look takes as long as two copies, or more where the thread loses its core. The call under
/// it takes some time more.
class Machine final : public erdma::util::Clock, public CmaCalls {
 public:
  uint64_t now() const noexcept override { return time += look; }
  ssize_t readv(pid_t pid, const iovec* local, size_t locals, const iovec* remote,
                size_t remotes) noexcept override {
    ck_assert_int_eq(pid, getpid());
    ck_assert(locals == 1 && remotes == 1 && local->iov_base != remote->iov_base);
    if (refusal != 0) return -refusal;
    std::memmove(local->iov_base, remote->iov_base, local->iov_len);
    time += ++calls == slow_call ? 1'000'000 : call;
    return ssize_t(local->iov_len);
  }

  mutable uint64_t time = 1;
  uint64_t look = 1000;  ///< ns
  uint64_t call = 0;     ///< ns more than a look
  unsigned calls = 0, slow_call = 0;
  int refusal = 0;
};

constexpr size_t kMedium = erdma::transport::shm::kDefaultEager;

struct Chooser {
  Machine machine;
  Options options;
  FragmentLimits limits{options, machine, machine};
};

struct CostCase {
  uint64_t call;  ///< ns, while two copies take 1000
  bool copies;
};
constexpr CostCase kCosts[] = {{0, false}, {1000, false}, {1001, true}, {4000, true}};

TEST(where_cores_are_shared_the_cheaper_way_takes_long_messages, std::size(kCosts)) {
  Chooser chooser;
  chooser.machine.call = kCosts[_i].call;
  const auto found = chooser.limits.limits(true, true, kMedium);
  const auto& most = kCosts[_i].copies ? FragmentLimits::kCopiesPay : FragmentLimits::kCallsPay;
  ck_assert_uint_eq(found.message, most.message);
  ck_assert_uint_eq(found.all_rings, most.all_rings);
  ck_assert_uint_eq(found.of_burst, kCosts[_i].copies ? SIZE_MAX : 16 * 1024);
}

TEST(a_try_in_which_the_thread_lost_its_core_does_not_count) {
  Chooser chooser;
  chooser.machine.slow_call = 1;
  ck_assert_uint_eq(chooser.limits.limits(true, true, kMedium).message,
                    FragmentLimits::kCallsPay.message);
}

TEST(the_way_is_measured_once_and_only_where_it_matters) {
  Chooser chooser;
  for (int i = 0; i < 3; ++i) {
    ck_assert_uint_eq(chooser.limits.limits(false, true, kMedium).message,
                      chooser.options.eager_bytes);
    ck_assert_uint_eq(chooser.limits.limits(false, true, kMedium).all_rings, SIZE_MAX);
    ck_assert_uint_eq(chooser.limits.limits(false, false, kMedium).message,
                      FragmentLimits::kCopied.message);
    ck_assert_uint_eq(chooser.limits.limits(true, false, kMedium).message,
                      FragmentLimits::kCopiesPay.message);
  }
  ck_assert_uint_eq(chooser.machine.calls, 0);
  for (int i = 0; i < 3; ++i) (void)chooser.limits.limits(true, true, kMedium);
  ck_assert_uint_eq(chooser.machine.calls, FragmentLimits::kTries);
}

TEST(copies_take_long_messages_where_the_call_is_refused) {
  Chooser chooser;
  chooser.machine.refusal = EPERM;
  ck_assert_uint_eq(chooser.limits.limits(true, true, kMedium).message,
                    FragmentLimits::kCopiesPay.message);
}

/// FI_ERDMA_CMA=on.
TEST(calls_take_long_messages_where_the_user_wants_it) {
  Chooser chooser;
  chooser.machine.call = 4000;
  chooser.options.paths = PathPolicy::cma;
  ck_assert_uint_eq(chooser.limits.limits(true, true, kMedium).message,
                    FragmentLimits::kCallsPay.message);
  ck_assert_uint_eq(chooser.machine.calls, 0);
}

struct SpeedCase {
  uint64_t call;  ///< ns more than the 1000 that two copies take
  int refusal;
  PathPolicy paths;
  bool fast;
};
constexpr SpeedCase kSpeeds[] = {
    {0, 0, PathPolicy::measure, true},      {1000, 0, PathPolicy::measure, true},
    {1001, 0, PathPolicy::measure, false},  {4000, 0, PathPolicy::measure, false},
    {0, EPERM, PathPolicy::measure, false}, {4000, 0, PathPolicy::cma, true},
};

TEST(a_call_is_fast_if_it_takes_twice_as_long_as_two_copies_at_most, std::size(kSpeeds)) {
  const SpeedCase& c = kSpeeds[_i];
  Chooser chooser;
  chooser.machine.call = c.call;
  chooser.machine.refusal = c.refusal;
  chooser.options.paths = c.paths;
  for (int i = 0; i < 3; ++i) {
    ck_assert_int_eq(chooser.limits.calls_are_fast(), c.fast);
    (void)chooser.limits.limits(true, true, kMedium);
  }
  ck_assert_uint_le(chooser.machine.calls, FragmentLimits::kTries);
}

struct LongerCase {
  uint64_t call;  ///< ns more than the 1000 that two copies take
  size_t length, wish;
  bool longer;
};
constexpr size_t kLonger = FragmentLimits::kCopied.message;
constexpr LongerCase kLongerCases[] = {
    {1001, kMedium, kMedium, false},     {1001, kMedium + 1, kMedium, true},
    {1001, kLonger, kMedium, true},      {1001, kLonger + 1, kMedium, false},
    {1000, kMedium + 1, kMedium, false}, {1001, kLonger, kMedium - 1, false}};

/// Two copies by two cores may be faster than a slow call. Nobody measures calls for other
/// messages.
TEST(longer_messages_may_go_in_fragments_where_calls_are_slow, std::size(kLongerCases)) {
  const LongerCase& c = kLongerCases[_i];
  Chooser chooser;
  chooser.machine.call = c.call;
  chooser.options.eager_bytes = c.wish;
  for (int i = 0; i < 2; ++i)
    ck_assert_uint_eq(chooser.limits.limits(false, true, c.length).message,
                      c.longer ? kLonger : c.wish);
  const bool matters = c.length > kMedium && c.length <= kLonger && c.wish == kMedium;
  ck_assert_uint_eq(chooser.machine.calls, matters ? FragmentLimits::kTries : 0);
}

struct WishCase {
  size_t wish;
  uint64_t call;
  size_t most;
};
constexpr WishCase kWishes[] = {
    {8192, 4000, 8192}, {100'000, 4000, 100'000}, {100'000, 0, 64 * 1024}, {8192, 0, 8192}};

/// FI_ERDMA_SHM_EAGER_SIZE.
TEST(no_message_is_longer_than_the_user_wants, std::size(kWishes)) {
  const WishCase& c = kWishes[_i];
  Chooser chooser;
  chooser.machine.call = c.call;
  chooser.options.eager_bytes = c.wish;
  ck_assert_uint_eq(chooser.limits.limits(true, true, kMedium).message, c.most);
  ck_assert_uint_eq(chooser.limits.limits(false, true, kMedium).message, c.wish);
  ck_assert_uint_eq(chooser.limits.limits(false, false, kMedium).message, c.wish);
}

TEST(this_machine_is_measured) {
  const Options options;
  CmaCalls calls;
  const erdma::util::SystemClock clock;
  FragmentLimits limits(options, calls, clock);
  const size_t found = limits.limits(true, true, kMedium).message;
  ck_assert(found == FragmentLimits::kCopiesPay.message ||
            found == FragmentLimits::kCallsPay.message);
  ck_assert_uint_eq(limits.limits(true, true, kMedium).message, found);
}

}  // namespace
