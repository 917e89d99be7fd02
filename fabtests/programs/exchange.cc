#include "exchange.h"

#include <algorithm>

namespace erdma::programs {
namespace {

struct Window {
  uint64_t remote, key;
};

/// Slots keep a distance that is no power of two, so that they differ in alignment.
size_t stride(const Options& options) {
  return *std::max_element(options.sizes.begin(), options.sizes.end()) + 72 + 1;
}
fi_hmem_iface iface(const Options& options) {
  return options.memory == "cuda" ? FI_HMEM_CUDA : FI_HMEM_SYSTEM;
}

}  // namespace

Exchange::Exchange(const Options& options, Side side, Channel& channel, uint64_t caps)
    : x_options(options),
      x_side(side),
      x_other(side == Side::server ? Side::client : Side::server),
      x_channel(channel),
      x_stride(stride(options)),
      x_rma((caps & FI_RMA) != 0),
      x_endpoint(options, caps),
      x_out(x_endpoint, kWindow * x_stride, 0, iface(options)),
      x_in(x_endpoint, kWindow * x_stride, 0, iface(options)),
      x_window(x_endpoint, x_rma ? kWindow * x_stride : 1,
               x_rma ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0, iface(options)) {
  meet();
}

void Exchange::meet() {
  auto drive = [this] { x_endpoint.progress(); };
  x_peer.address = x_endpoint.insert(x_channel.swap(x_endpoint.name(), drive));
  const Window mine{x_window.remote(), x_window.key()};
  const auto theirs = from_bytes<Window>(x_channel.swap(bytes_of(mine), drive));
  x_peer.remote = theirs.remote;
  x_peer.key = theirs.key;
}

uint64_t Exchange::seed(Side from, size_t slot) const noexcept {
  return (x_round * kWindow + slot) * 2 + (from == Side::server ? 0 : 1);
}

void Exchange::check(const Buffer& buffer, size_t slot, size_t size, uint64_t wanted) const {
  const ptrdiff_t wrong = buffer.first_wrong(offset(slot), size, wanted);
  if (wrong >= 0) fail("%zu bytes: byte %td is wrong", size, wrong);
}

void Exchange::finish(const char* what, size_t size) {
  for (Operation& operation : x_sends) {
    x_endpoint.finish(operation, what);
    ++x_operations;
    x_bytes += size;
  }
}

void Exchange::send_and_receive(size_t size) {
  fid_ep* ep = x_endpoint.ep();
  for (size_t i = 0; i < kWindow; ++i) {
    x_sends[i] = {};
    x_receives[i] = {};
    x_in.fill(offset(i), size, ~seed(x_other, i));
    x_endpoint.post(
        [&] {
          return fi_trecv(ep, x_in.at(offset(i)), size, x_in.desc(), x_peer.address,
                          seed(x_other, i), 0, &x_receives[i]);
        },
        "fi_trecv");
  }
  for (size_t i = 0; i < kWindow; ++i) {
    x_out.fill(offset(i), size, seed(x_side, i));
    if (x_options.spoil && size > 0 && i == 1) x_out.spoil(offset(i) + size / 2);
    x_endpoint.post(
        [&] {
          return fi_tsend(ep, x_out.at(offset(i)), size, x_out.desc(), x_peer.address,
                          seed(x_side, i), &x_sends[i]);
        },
        "fi_tsend");
  }
  for (size_t i = 0; i < kWindow; ++i) {
    x_endpoint.finish(x_receives[i], "a receive");
    if (x_receives[i].length != size) fail("%zu bytes came, not %zu", x_receives[i].length, size);
    check(x_in, i, size, seed(x_other, i));
  }
  finish("a send", size);
}

void Exchange::messages(size_t size, int iterations) {
  for (int i = 0; i < iterations; ++i, ++x_round) send_and_receive(size);
}

void Exchange::one_sided(size_t size, bool read) {
  fid_ep* ep = x_endpoint.ep();
  for (size_t i = 0; i < kWindow; ++i) {
    Buffer& local = read ? x_in : x_out;
    x_sends[i] = {};
    local.fill(offset(i), size, read ? ~seed(x_other, i) : seed(x_side, i));
    if (x_options.spoil && !read && size > 0) local.spoil(offset(i) + size / 2);
    iovec piece{local.at(offset(i)), size};
    void* desc = local.desc();
    const fi_rma_iov segment{x_peer.remote + offset(i), size, x_peer.key};
    const fi_msg_rma message{&piece, &desc, 1, x_peer.address, &segment, 1, &x_sends[i], 0};
    x_endpoint.post(
        [&] {
          return read ? fi_readmsg(ep, &message, FI_COMPLETION)
                      : fi_writemsg(ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
        },
        read ? "fi_read" : "fi_write");
  }
  finish(read ? "a read" : "a write", size);
}

void Exchange::reads(size_t size, int iterations) {
  for (int i = 0; i < iterations; ++i, ++x_round) {
    for (size_t slot = 0; slot < kWindow; ++slot) {
      x_window.fill(offset(slot), size, seed(x_side, slot));
      if (x_options.spoil && size > 0) x_window.spoil(offset(slot) + size / 2);
    }
    barrier();
    one_sided(size, true);
    for (size_t slot = 0; slot < kWindow; ++slot) check(x_in, slot, size, seed(x_other, slot));
    barrier();
  }
}

void Exchange::writes(size_t size, int iterations) {
  for (int i = 0; i < iterations; ++i, ++x_round) {
    for (size_t slot = 0; slot < kWindow; ++slot) {
      x_window.fill(offset(slot), size, ~seed(x_other, slot));
    }
    barrier();
    one_sided(size, false);
    barrier();  // the other side's writes are here now
    for (size_t slot = 0; slot < kWindow; ++slot) check(x_window, slot, size, seed(x_other, slot));
    barrier();
  }
}

}  // namespace erdma::programs
