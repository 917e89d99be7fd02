#include "fi_erdma/question.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "fi_erdma/descriptor.h"

namespace fi_erdma {
namespace {

/// Of all endpoints.
uint64_t answers_of(const Process& process) {
  const BlockKind* const endpoints =
      process.page.snapshot ? process.page.snapshot->kind("endpoint") : nullptr;
  uint64_t answers = 0;
  if (endpoints)
    for (const Block& endpoint : endpoints->blocks)
      answers += endpoint.number("answers").value_or(0);
  return answers;
}

/// Of what is open, as of what a descriptor without any right holds: nothing is opened for that.
std::optional<struct statx> status_of(int fd) {
  constexpr unsigned kWanted = STATX_TYPE | STATX_INO | STATX_UID;
  struct statx status {};
  if (fd < 0 || statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, kWanted, &status) ||
      (status.stx_mask & kWanted) != kWanted)
    return std::nullopt;
  return status;
}

/// Pipes without a name are on a device of their own; one with a name is in the folder of whoever
/// made it, and may lead to programs of others.
bool is_pipe_without_name(const struct statx& status) {
  int ends[2];
  if (!S_ISFIFO(status.stx_mode) || pipe2(ends, O_CLOEXEC)) return false;
  const Descriptor out(ends[0]), in(ends[1]);
  const auto own = status_of(out.get());
  return own && status.stx_dev_major == own->stx_dev_major &&
         status.stx_dev_minor == own->stx_dev_minor;
}

/// The pipe that the page names, if the process has one there that belongs to its own user: a page
/// may name anything, and the process may put anything else in its place meanwhile. So what was
/// looked at is what is opened. -1: there is none. The call never waits.
int open_pipe(const Process& process) {
  const Block* const shown = process.page.snapshot ? process.page.snapshot->process() : nullptr;
  const auto number = shown ? shown->number("question_fd") : std::nullopt;
  const auto inode = shown ? shown->number("question_inode") : std::nullopt;
  if (!number || !inode) return -1;
  const std::string folder = "/proc/" + std::to_string(process.pid);
  const std::string path = folder + "/fd/" + std::to_string(*number);
  const Descriptor process_folder(open(folder.c_str(), O_PATH | O_CLOEXEC));
  const Descriptor named(open(path.c_str(), O_PATH | O_CLOEXEC));
  const auto owner = status_of(process_folder.get()), found = status_of(named.get());
  if (!owner || !found || found->stx_ino != *inode || found->stx_uid != owner->stx_uid ||
      !is_pipe_without_name(*found))
    return -1;
  const std::string again = "/proc/self/fd/" + std::to_string(named.get());
  return open(again.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
}

/// The kernel reports a new byte to those who sleep on the pipe only if it was empty.
void drain(int pipe) {
  char bytes[4096];
  for (int left = 16; left > 0 && read(pipe, bytes, sizeof(bytes)) > 0; --left) continue;
}

void put(int pipe) {
  drain(pipe);
  (void)!write(pipe, "?", 1);
}

bool runs(const Process& process) {
  return std::string("TtZX").find(process.state) == std::string::npos;
}

}  // namespace

Question::Question(std::span<const Process> processes) {
  for (const Process& process : processes) {
    const int pipe = runs(process) ? open_pipe(process) : -1;
    if (pipe < 0) continue;
    x_asked.push_back({process.pid, pipe, answers_of(process)});
    put(pipe);
  }
}

void Question::ask_again(std::span<const Process> now) {
  for (const Process& process : now)
    if (const Asked* const asked = find(process); asked && !answered(process)) put(asked->pipe);
}

Question::~Question() {
  for (const Asked& asked : x_asked) {
    drain(asked.pipe);
    close(asked.pipe);
  }
}

const Question::Asked* Question::find(const Process& process) const {
  const auto found = std::ranges::find(x_asked, process.pid, &Asked::pid);
  return found == x_asked.end() ? nullptr : &*found;
}

bool Question::asked(const Process& process) const {
  return find(process) != nullptr;
}

bool Question::answered(const Process& now) const {
  const Asked* const asked = find(now);
  return asked && answers_of(now) > asked->answers;
}

bool Question::answered(std::span<const Process> now) const {
  return std::ranges::all_of(x_asked, [&](const Asked& asked) {
    return std::ranges::any_of(now, [&](const Process& process) {
      return process.pid == asked.pid && answers_of(process) > asked.answers;
    });
  });
}

}  // namespace fi_erdma
