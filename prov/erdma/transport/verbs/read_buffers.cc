#include "transport/verbs/read_buffers.h"

#include "util/error_text.h"
#include "util/log.h"

namespace erdma::transport::verbs {

/// False: there is no memory, or all slots are taken. If the device refuses memory, few of the
/// READs that follow ask it again, as a shortage may pass.
bool ReadBuffers::prepare(const Device& device, OwnMemory& memory, size_t bytes,
                          uint32_t slots) noexcept {
  const size_t all = kSlots * bytes;
  if (memory || x_refused.refuses(all)) return false;
  if (const int error = memory.make(device, all, OwnUse::read_buffers)) {
    x_refused.failed(all, true);
    ERDMA_INFO(EP_DATA, "%s: no memory for short reads from a peer: %s\n", device.name().c_str(),
               util::ErrorText(error).c_str());
    return false;
  }
  (void)x_refused.made(all);
  x_free |= slots;
  return true;
}

}  // namespace erdma::transport::verbs
