#include "fi_erdma/on_device.h"

#include <set>

namespace fi_erdma {
namespace {

/// Fields of endpoints in the block of the process are those of its closed endpoints.
void forget_closed(BlockKind& processes, const BlockKind& endpoints) {
  for (Block& process : processes.blocks)
    for (const FieldInfo& field : endpoints.fields)
      if (uint64_t* const found = process.numbers.find(field.name);
          found && field.meaning == layout::Meaning::counter)
        *found = layout::kUnknown;
}

/// Whether an endpoint is left.
bool leave_device(Snapshot& snapshot, std::string_view device) {
  BlockKind* const endpoints = snapshot.kind("endpoint");
  if (!endpoints) return false;
  std::erase_if(endpoints->blocks,
                [&](const Block& endpoint) { return endpoint.text("device") != device; });
  std::set<uint64_t> left;
  for (const Block& endpoint : endpoints->blocks) left.insert(endpoint.index);
  if (BlockKind* const peers = snapshot.kind("peer"))
    std::erase_if(peers->blocks, [&](const Block& peer) {
      return !left.contains(peer.number("endpoint").value_or(UINT64_MAX));
    });
  if (BlockKind* const processes = snapshot.kind("process")) forget_closed(*processes, *endpoints);
  return !left.empty();
}

}  // namespace

void leave_device(Look& look, std::string_view device) {
  if (device.empty()) return;
  std::erase_if(look.processes, [&](Process& process) {
    return process.page.snapshot && !leave_device(*process.page.snapshot, device);
  });
}

}  // namespace fi_erdma
