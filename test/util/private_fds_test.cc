// A forked child has none of its parent's private descriptors.
#include "util/private_fds.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "fabric/descriptors.h"
#include "libcheck.h"
#include "util/fd.h"
#include "util/process_epoch.h"

namespace {

using erdma::test::descriptors;
using erdma::util::Fd;
using erdma::util::PrivateFd;

Fd make() {
  return Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

/// The result of look() in a forked child.
template <typename Look>
bool in_child(Look look) {
  erdma::util::register_fork_handler();
  const pid_t child = fork();
  if (child == 0) _exit(look() ? 0 : 1);
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

/// True if each descriptor is open, and is a socket that the parent does not have.
bool are_plugs(const std::vector<int>& fds, const std::map<int, std::string>& parents) {
  const auto now = descriptors();
  for (const int fd : fds) {
    if (!now.contains(fd) || now.at(fd).rfind("socket:", 0) != 0) return false;
    for (const auto& [number, target] : parents)
      if (target == now.at(fd)) return false;
    if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC)) return false;
    pollfd quiet{fd, POLLIN, 0};
    char byte;
    if (poll(&quiet, 1, 0) != 0 || read(fd, &byte, 1) >= 0) return false;
  }
  return true;
}

}  // namespace

TEST(owned_descriptors_lead_nowhere_in_a_child) {
  const Fd one = make(), other = make();
  Fd moved_from = make(), replaced = make();
  const Fd moved = std::move(moved_from);
  replaced.reset(eventfd(0, 0));
  const std::vector<int> all = {one.get(), other.get(), moved.get(), replaced.get()};
  const auto parents = descriptors();
  ck_assert(in_child([&] { return are_plugs(all, parents); }));
  ck_assert(descriptors() == parents);
  ck_assert_int_eq(eventfd_write(one.get(), 1), 0);
}

TEST(what_is_not_owned_is_the_childs_too) {
  Fd closed = make(), released = make(), swapped = make();
  const int number = closed.get();
  closed.reset();
  const int anothers = eventfd(0, 0);  // takes the lowest free number
  ck_assert_int_eq(anothers, number);
  const int given_away = released.release();
  swapped = make();
  const auto parents = descriptors();
  ck_assert(in_child([&] {
    const auto now = descriptors();
    return now.at(anothers) == parents.at(anothers) && now.at(given_away) == parents.at(given_away);
  }));
  close(anothers);
  close(given_away);
}

TEST(descriptors_of_a_library_are_marked_while_they_are_in_use) {
  const int fd = eventfd(0, 0);
  const auto parents = descriptors();
  {
    PrivateFd mark(fd);
    PrivateFd moved(std::move(mark));
    mark = std::move(moved);
    ck_assert(in_child([&] { return are_plugs({fd}, parents); }));
  }
  ck_assert(in_child([&] { return descriptors().at(fd) == parents.at(fd); }));
  const PrivateFd none(-1);
  close(fd);
}

/// The child closes only the number that it inherited, even if it has opened others since. Its own
/// children find no descriptor of the first parent either.
TEST(child_closes_what_it_inherited_and_nothing_else) {
  Fd inherited = make();
  const auto parents = descriptors();
  ck_assert(in_child([&] {
    const Fd own = make();
    const auto before = descriptors();
    if (!in_child([&] { return are_plugs({inherited.get(), own.get()}, before); })) return false;
    inherited.reset();
    return descriptors().at(own.get()) == before.at(own.get()) &&
           descriptors().size() == before.size() - 1;
  }));
}

/// The child closes all that it inherited (closefrom(3)), and gets one of the numbers for its own.
TEST(number_that_a_child_reused_is_its_own_in_its_children, 2) {
  const Fd inherited = make(), other = make();
  const auto parents = descriptors();
  ck_assert(in_child([&] {
    close(inherited.get());
    if (eventfd(0, 0) != inherited.get()) return false;
    const auto mine = descriptors();
    const auto look = [&] {
      return descriptors().at(inherited.get()) == mine.at(inherited.get()) &&
             are_plugs({other.get()}, parents);
    };
    return in_child([&] { return _i ? in_child(look) : look(); });
  }));
}

TEST(numbers_may_all_be_taken_or_high, 2) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit few{rlim_t(_i ? 64 : 200'000), limit.rlim_max};
  if (limit.rlim_max < few.rlim_cur) return;
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<Fd> all;
  std::vector<int> numbers;
  if (_i) {
    for (Fd next = make(); next; next = make()) all.push_back(std::move(next));
  } else {
    for (const int at : {65'535, 65'536, 199'999}) all.emplace_back(fcntl(0, F_DUPFD_CLOEXEC, at));
  }
  for (const Fd& fd : all) numbers.push_back(fd.get());
  ck_assert(in_child([&] {
    struct stat status {};
    for (const int fd : numbers)
      if (fstat(fd, &status) || !S_ISSOCK(status.st_mode)) return false;
    return true;
  }));
}

/// The limit was lowered since: dup3(2) refuses numbers that are not below it.
TEST(numbers_may_be_above_a_lower_limit) {
  const Fd low = make(), high(fcntl(low.get(), F_DUPFD_CLOEXEC, 100));
  ck_assert_int_ge(high.get(), 100);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit lower{64, limit.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &lower), 0);
  const auto parents = descriptors();
  ck_assert(in_child([&] {
    if (!are_plugs({low.get()}, parents) || fcntl(high.get(), F_GETFD) != -1) return false;
    // A child of the child finds the same.
    return in_child(
        [&] { return are_plugs({low.get()}, parents) && fcntl(high.get(), F_GETFD) == -1; });
  }));
}
