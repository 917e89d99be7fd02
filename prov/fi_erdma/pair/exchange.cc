#include "fi_erdma/pair/exchange.h"

#include <algorithm>

namespace fi_erdma::pair {
namespace {

struct Window {
  uint64_t remote, key;
};

/// The distance between slots is no power of two, so that their alignments differ.
size_t stride(const Options& options) {
  return std::ranges::max(options.sizes) + 72 + 1;
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
  x_endpoint.watch(channel);
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

void Exchange::post_receive(size_t slot, size_t size) {
  x_receives[slot] = {};
  x_endpoint.post(
      [&] {
        return fi_trecv(x_endpoint.ep(), x_in.at(offset(slot)), size, x_in.desc(), x_peer.address,
                        seed(x_other, slot), 0, &x_receives[slot]);
      },
      "fi_trecv");
}

void Exchange::post_send(size_t slot, size_t size) {
  x_sends[slot] = {};
  x_endpoint.post(
      [&] {
        return fi_tsend(x_endpoint.ep(), x_out.at(offset(slot)), size, x_out.desc(), x_peer.address,
                        seed(x_side, slot), &x_sends[slot]);
      },
      "fi_tsend");
}

void Exchange::finish_receives(size_t size) {
  for (Operation& receive : x_receives) {
    x_endpoint.finish(receive, "a receive");
    if (receive.length != size) fail("%zu bytes came, not %zu", receive.length, size);
  }
}

void Exchange::send_and_receive(size_t size) {
  for (size_t i = 0; i < kWindow; ++i) {
    x_in.fill(offset(i), size, ~seed(x_other, i));
    post_receive(i, size);
  }
  for (size_t i = 0; i < kWindow; ++i) {
    x_out.fill(offset(i), size, seed(x_side, i));
    if (x_options.spoil && size > 0 && i == 1) x_out.spoil(offset(i) + size / 2);
    post_send(i, size);
  }
  finish_receives(size);
  for (size_t i = 0; i < kWindow; ++i) check(x_in, i, size, seed(x_other, i));
  finish("a send", size);
}

void Exchange::messages(size_t size, int iterations) {
  for (int i = 0; i < iterations; ++i, ++x_round) send_and_receive(size);
}

void Exchange::post_one_sided(size_t slot, size_t size, bool read) {
  Buffer& local = read ? x_in : x_out;
  x_sends[slot] = {};
  iovec piece{local.at(offset(slot)), size};
  void* desc = local.desc();
  const fi_rma_iov segment{x_peer.remote + offset(slot), size, x_peer.key};
  const fi_msg_rma message{&piece, &desc, 1, x_peer.address, &segment, 1, &x_sends[slot], 0};
  fid_ep* const ep = x_endpoint.ep();
  x_endpoint.post(
      [&] {
        return read ? fi_readmsg(ep, &message, FI_COMPLETION)
                    : fi_writemsg(ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
      },
      read ? "fi_read" : "fi_write");
}

void Exchange::one_sided(size_t size, bool read) {
  for (size_t i = 0; i < kWindow; ++i) {
    Buffer& local = read ? x_in : x_out;
    local.fill(offset(i), size, read ? ~seed(x_other, i) : seed(x_side, i));
    if (x_options.spoil && !read && size > 0) local.spoil(offset(i) + size / 2);
    post_one_sided(i, size, read);
  }
  finish(read ? "a read" : "a write", size);
}

void Exchange::compared(Kind kind, size_t size, int iterations) {
  if (kind == Kind::message)
    messages(size, iterations);
  else if (kind == Kind::read)
    reads(size, iterations);
  else
    writes(size, iterations);
}

double Exchange::speed(Kind kind, size_t size, int iterations) {
  barrier();
  const double begin = now_s();
  for (int i = 0; i < iterations; ++i, ++x_round) {
    for (size_t slot = 0; kind == Kind::message && slot < kWindow; ++slot) post_receive(slot, size);
    for (size_t slot = 0; slot < kWindow; ++slot)
      if (kind == Kind::message)
        post_send(slot, size);
      else
        post_one_sided(slot, size, kind == Kind::read);
    if (kind == Kind::message) finish_receives(size);
    finish("an operation", size);
  }
  const double took = now_s() - begin;
  barrier();
  return double(kWindow) * iterations * double(size) / took;
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
    barrier();  // after it, the other side's writes have arrived
    for (size_t slot = 0; slot < kWindow; ++slot) check(x_window, slot, size, seed(x_other, slot));
    barrier();
  }
}

}  // namespace fi_erdma::pair
