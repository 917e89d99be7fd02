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

bool all_read(const Process& process) {
  const auto read = [&](std::string_view name) {
    const BlockKind* const kind =
        process.page.snapshot ? process.page.snapshot->kind(name) : nullptr;
    return kind && kind->unsettled == 0;
  };
  return read("process") && read("endpoint");
}

Question::Key key_of(const Block& endpoint) {
  return {endpoint.index, endpoint.text("address")};
}

/// The status of the open file, also if the descriptor was opened with O_PATH.
std::optional<struct statx> status_of(int fd) {
  constexpr unsigned kWanted = STATX_TYPE | STATX_INO | STATX_UID;
  struct statx status {};
  if (fd < 0 || statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, kWanted, &status) ||
      (status.stx_mask & kWanted) != kWanted)
    return std::nullopt;
  return status;
}

/// Compares devices: the kernel keeps all pipes without a name on one. A pipe with a name is in a
/// file system, and other programs may have opened it.
bool is_pipe_without_name(const struct statx& status) {
  int ends[2];
  if (!S_ISFIFO(status.stx_mode) || pipe2(ends, O_CLOEXEC)) return false;
  const Descriptor out(ends[0]), in(ends[1]);
  const auto own = status_of(out.get());
  return own && status.stx_dev_major == own->stx_dev_major &&
         status.stx_dev_minor == own->stx_dev_minor;
}

/// Opens the pipe that the page names, if it is a pipe that belongs to the user of the process. A
/// page may name any descriptor, and the process may replace the file meanwhile, so the very file
/// that was checked is opened. Returns -1 if there is no such pipe. Never blocks.
int open_pipe(const Process& process) {
  const Block* const shown = process.shown();
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

/// Empties the pipe: the kernel reports a new byte to its watchers only if the pipe was empty.
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
    Asked& asked = x_asked.emplace_back(
        Asked{process.pid, pipe, {}, process.page.snapshot->sequence, all_read(process)});
    for (const Block& endpoint : process.blocks("endpoint"))
      asked.answers[key_of(endpoint)] = endpoint.number("answers").value_or(0);
    put(pipe);
  }
}

void Question::ask_again(std::span<const Process> now) {
  for (const Process& process : now)
    if (const Asked* const asked = find(process); asked && !fully_answered(*asked, process))
      put(asked->pipe);
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

/// Each endpoint is compared with itself: the sum over all endpoints falls when one is closed. An
/// endpoint that is new since the question answers for the process once it has answered at all.
bool Question::answered(const Asked& asked, const Block& endpoint) {
  const auto before = asked.answers.find(key_of(endpoint));
  if (before == asked.answers.end() && !asked.all_known) return false;
  return endpoint.number("answers").value_or(0) >
         (before == asked.answers.end() ? 0 : before->second);
}

bool Question::answered(const Asked& asked, const Process& now) {
  return std::ranges::any_of(now.blocks("endpoint"),
                             [&](const Block& endpoint) { return answered(asked, endpoint); });
}

/// The sequence tells of an endpoint that was opened and closed again since the question.
bool Question::changed(const Process& now) const {
  const Asked* const asked = find(now);
  if (!asked || answered(*asked, now)) return false;
  if (!asked->all_known || !all_read(now)) return true;
  const std::span<const Block> endpoints = now.blocks("endpoint");
  return now.page.snapshot->sequence != asked->sequence ||
         endpoints.size() != asked->answers.size() ||
         std::ranges::any_of(endpoints, [&](const Block& endpoint) {
           return !asked->answers.contains(key_of(endpoint));
         });
}

bool Question::answered(const Process& now) const {
  const Asked* const asked = find(now);
  return asked && answered(*asked, now);
}

bool Question::answered(const Process& now, const Block& endpoint) const {
  const Asked* const asked = find(now);
  return asked && answered(*asked, endpoint);
}

/// An endpoint that is not enabled has no thread that could notice the question. A process that has
/// no other endpoints may call libfabric, which shows only if it opens, closes or enables one.
bool Question::fully_answered(const Asked& asked, const Process& now) {
  const std::span<const Block> endpoints = now.blocks("endpoint");
  const auto enabled = [](const Block& endpoint) { return endpoint.number("enabled") != 0u; };
  return std::ranges::any_of(endpoints, enabled) && all_read(now) &&
         std::ranges::all_of(endpoints, [&](const Block& endpoint) {
           return !enabled(endpoint) || answered(asked, endpoint);
         });
}

bool Question::fully_answered(std::span<const Process> now) const {
  return std::ranges::all_of(x_asked, [&](const Asked& asked) {
    return std::ranges::any_of(now, [&](const Process& process) {
      return process.pid == asked.pid && fully_answered(asked, process);
    });
  });
}

}  // namespace fi_erdma
