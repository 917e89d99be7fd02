#include "transport/verbs/read_buffers.h"

#include "util/error_text.h"
#include "util/log.h"

namespace erdma::transport::verbs {

/// False: there is no memory, or all slots are taken.
bool ReadBuffers::prepare(const Device& device, OwnMemory& memory, size_t bytes,
                          uint32_t slots) noexcept {
  if (memory || x_refused) return false;
  if (const int error = memory.make(device, kSlots * bytes, OwnUse::read_buffers)) {
    x_refused = true;
    ERDMA_INFO(EP_DATA, "%s: no memory for short reads from a peer: %s\n", device.name().c_str(),
               util::ErrorText(error).c_str());
    return false;
  }
  x_free |= slots;
  return true;
}

}  // namespace erdma::transport::verbs
