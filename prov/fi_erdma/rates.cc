#include "fi_erdma/rates.h"

#include <algorithm>

namespace fi_erdma {
namespace {

std::optional<uint64_t> started(const Process& process) {
  const Block* const shown = process.page.snapshot ? process.page.snapshot->process() : nullptr;
  return shown ? shown->number("started") : std::nullopt;
}

}  // namespace

Look look(const std::vector<pid_t>& pids) {
  Look now{std::chrono::steady_clock::now(), {}};
  now.processes = pids.empty() ? processes() : processes(pids);
  return now;
}

Rates::Rates(const Look* before, const Look& now) : x_before(before) {
  if (before) x_seconds = std::chrono::duration<double>(now.at - before->at).count();
}

/// The same page: the PID alone may be another's by now.
const Process* Rates::before(const Process& process) const {
  if (!x_before || !process.page.snapshot) return nullptr;
  for (const Process& other : x_before->processes)
    if (other.pid == process.pid && other.page.snapshot && started(other) == started(process))
      return &other;
  return nullptr;
}

/// The same endpoint: its block may be another's by now.
const Block* Rates::before(const Process& process, const Block& endpoint) const {
  const Process* const other = before(process);
  const BlockKind* const endpoints = other ? other->page.snapshot->kind("endpoint") : nullptr;
  if (endpoints)
    for (const Block& block : endpoints->blocks)
      if (block.index == endpoint.index && block.text("address") == endpoint.text("address"))
        return &block;
  return nullptr;
}

std::optional<double> Rates::rate(std::optional<uint64_t> from, std::optional<uint64_t> to) const {
  if (!from || !to || x_seconds <= 0) return std::nullopt;
  return double(growth(from, to)) / x_seconds;
}

Rates::Pair Rates::of(const Process& process, const Block& endpoint, const Path& path) const {
  const Block* const other = before(process, endpoint);
  if (!other) return {};
  const Bytes from = bytes_of(*other, path), to = bytes_of(endpoint, path);
  return {rate(from.sent, to.sent), rate(from.received, to.received)};
}

std::optional<double> Rates::of(const Process& process, const Block& endpoint,
                                std::string_view counter) const {
  const Block* const other = before(process, endpoint);
  return other ? rate(other->number(counter), endpoint.number(counter)) : std::nullopt;
}

double Rates::load(const Process& process) const {
  const Process* const other = before(process);
  if (!other || x_seconds <= 0) return 0;
  return std::max(0.0, process.processor_seconds - other->processor_seconds) / x_seconds;
}

Rates::Pair Rates::of(const Process& process) const {
  const Process* const other = before(process);
  if (!other) return {};
  const Bytes from = all_bytes_of(*other->page.snapshot);
  const Bytes to = all_bytes_of(*process.page.snapshot);
  return {rate(from.sent, to.sent), rate(from.received, to.received)};
}

}  // namespace fi_erdma
