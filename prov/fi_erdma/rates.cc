#include "fi_erdma/rates.h"

#include <algorithm>

namespace fi_erdma {
namespace {

std::optional<uint64_t> started(const Process& process) {
  const Block* const shown = process.shown();
  return shown ? shown->number("started") : std::nullopt;
}

}  // namespace

Look look(const std::vector<pid_t>& pids) {
  Look now{std::chrono::steady_clock::now(), {}, 0};
  now.processes = pids.empty() ? processes(&now.refused) : processes(pids);
  for (const Process& process : now.processes) now.memory += process.page.memory;
  return now;
}

Rates::Rates(const Look* before, const Look& now) {
  if (!before) return;
  x_seconds = std::chrono::duration<double>(now.at - before->at).count();
  for (const Process& process : before->processes) x_by_pid.emplace(process.pid, &process);
}

/// Whether it is the same page: another process may have the PID by now.
const Process* Rates::before(const Process& process) const {
  const auto found = x_by_pid.find(process.pid);
  if (found == x_by_pid.end() || !process.page.snapshot) return nullptr;
  const Process& other = *found->second;
  return other.page.snapshot && started(other) == started(process) ? &other : nullptr;
}

const Block* Rates::before(const Process& process, std::string_view kind,
                           const Block& block) const {
  const Process* const other = before(process);
  const BlockKind* const blocks = other ? other->page.snapshot->kind(kind) : nullptr;
  const Block* const known = blocks ? blocks->block(block.index) : nullptr;
  return known && known->text("address") == block.text("address") ? known : nullptr;
}

/// Whether both looks have all blocks of the process.
bool Rates::is_whole(const Process& process) const {
  const Process* const other = before(process);
  return other && !other->page.snapshot->unsettled() && !process.page.snapshot->unsettled();
}

std::optional<double> Rates::rate(std::optional<uint64_t> from, std::optional<uint64_t> to) const {
  if (!from || !to || x_seconds <= 0) return std::nullopt;
  return double(growth(from, to)) / x_seconds;
}

Rates::Pair Rates::of(const Process& process, const Block& endpoint, const Path& path) const {
  const Block* const other = before(process, "endpoint", endpoint);
  if (!other || !is_whole(process)) return {};
  const Bytes from = bytes_of(*other, path), to = bytes_of(endpoint, path);
  return {rate(from.sent, to.sent), rate(from.received, to.received)};
}

std::optional<double> Rates::of(const Process& process, const Block& endpoint,
                                std::string_view counter) const {
  const Block* const other = before(process, "endpoint", endpoint);
  if (!other || !is_whole(process)) return std::nullopt;
  return rate(other->number(counter), endpoint.number(counter));
}

double Rates::load(const Process& process) const {
  const Process* const other = before(process);
  if (!other || x_seconds <= 0) return 0;
  return std::max(0.0, process.processor_seconds - other->processor_seconds) / x_seconds;
}

Rates::Pair Rates::of_peer(const Process& process, const Block& peer) const {
  const Block* const other = before(process, "peer", peer);
  if (!other) return {};
  const Bytes from = all_bytes_of(*other), to = all_bytes_of(peer);
  return {rate(from.sent, to.sent), rate(from.received, to.received)};
}

/// The bytes of closed endpoints are not known, so that a sum would fall as an endpoint is closed.
Rates::Pair Rates::of_open(const Process& process) const {
  Pair sum;
  const auto add = [](std::optional<double>& to, std::optional<double> more) {
    if (more) to = to.value_or(0) + *more;
  };
  for (const Block& endpoint : process.blocks("endpoint"))
    for (const Path& path : paths()) {
      if (path.part) continue;
      const Pair rate = of(process, endpoint, path);
      add(sum.sent, rate.sent);
      add(sum.received, rate.received);
    }
  return sum;
}

Rates::Pair Rates::of(const Process& process) const {
  const Process* const other = before(process);
  if (!other || !is_whole(process)) return {};
  const Block* const closed = process.shown();
  if (closed && !all_bytes_of(*closed).sent) return of_open(process);
  const Bytes from = all_bytes_of(*other->page.snapshot);
  const Bytes to = all_bytes_of(*process.page.snapshot);
  return {rate(from.sent, to.sent), rate(from.received, to.received)};
}

}  // namespace fi_erdma
