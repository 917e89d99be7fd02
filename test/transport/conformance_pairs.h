#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include <rdma/fi_errno.h>

#include "hmem/cuda.h"
#include "libcheck.h"
#include "transport/conformance.h"
#include "transport/shm/shm_transport.h"
#include "transport/simulated_device.h"
#include "transport/staging/staging_transport.h"
#include "transport/verbs/registration.h"
#include "transport/verbs/verbs_transport.h"

/// Makes a pair of endpoints of each transport: shared memory on this host, and the verbs transport
/// on the simulated adapter. The tests of a file that includes this header run once for each of
/// g_factories and make() a pair of `_i`.

namespace erdma::test {
namespace {

using transport::Access;
using transport::Link;
using transport::RemoteKey;
using transport::SendHint;

/// Of all sides of a test, which is a process of its own.
transport::ShmCounters g_shm_counters;
transport::NicCounters g_nic_counters;

void open_shm(Side& side, transport::shm::Options options) {
  options.counters = &g_shm_counters;
  auto opened = transport::shm::ShmTransport::open(options, address_of("127.0.0.1", 0));
  ck_assert_int_eq(opened.error(), 0);
  side.name = (*opened)->name();
  side.transport = opened->get();
  side.owned = std::move(*opened);
}

void shm_pair(Pair& pair) {
  open_shm(pair.a, {});
  open_shm(pair.b, {});
}

void shm_pair_without_cma(Pair& pair) {
  transport::shm::Options options;
  options.cma = false;
  open_shm(pair.a, options);
  open_shm(pair.b, options);
}

void shm_pair_without_hot_rings(Pair& pair) {
  transport::shm::Options options;
  options.hot_peers = 0;  // there is one; peers that send fewer than 16 messages do not take it
  open_shm(pair.a, options);
  open_shm(pair.b, options);
}

/// Puts the staging transport of FI_HMEM endpoints on top of a side.
void stage(Side& side) {
  hmem::Cuda* const cuda = hmem::Cuda::get();
  ck_assert_ptr_nonnull(cuda);
  side.owned = std::make_unique<transport::staging::StagingTransport>(std::move(side.owned), *cuda);
  side.transport = side.owned.get();
}

void shm_pair_staged(Pair& pair) {
  shm_pair(pair);
  stage(pair.a);
  stage(pair.b);
}

/// Both outlive the sides of a test; each test is a process of its own.
std::unique_ptr<transport::verbs::Device> g_device;
std::unique_ptr<transport::verbs::RegistrationCache> g_cache;

void open_verbs(Side& side, transport::verbs::Options options, bool registers) {
  options.counters = &g_nic_counters;
  if (!g_device) g_device = open_first_device();
  ck_assert_ptr_nonnull(g_device.get());
  if (!g_cache) {
    auto cache = transport::verbs::RegistrationCache::create(*g_device, {.enabled = registers});
    ck_assert_int_eq(cache.error(), 0);
    g_cache = std::move(*cache);
  }
  auto opened =
      transport::verbs::VerbsTransport::open(options, *g_device, *g_cache, g_device->address());
  ck_assert_int_eq(opened.error(), 0);
  side.name = (*opened)->name();
  side.transport = opened->get();
  side.owned = std::move(*opened);
}

/// Runs at the end of each test.
void close_device() {
  g_cache.reset();
  g_device.reset();
}

void verbs_pair(Pair& pair) {
  open_verbs(pair.a, {}, true);
  open_verbs(pair.b, {}, true);
}

void verbs_pair_without_registration(Pair& pair) {
  open_verbs(pair.a, {}, false);
  open_verbs(pair.b, {}, false);
}

void verbs_to_itself(Pair& pair) {
  open_verbs(pair.a, {}, true);
  pair.b.transport = pair.a.transport;
  pair.b.name = pair.a.name;
  pair.b.sink = pair.a.sink;
}

struct Factory {
  const char* name;
  void (*make)(Pair& pair);
  /// revoke() also takes the memory away from a peer that breaks the rules.
  bool revokes;
};
const Factory kShm[] = {{"shm", shm_pair, true},
                        {"shm without CMA", shm_pair_without_cma, true},
                        {"shm with one hot ring", shm_pair_without_hot_rings, true},
                        {"shm, staged", shm_pair_staged, true}};
const Factory kVerbs[] = {{"verbs", verbs_pair, false},
                          {"verbs without registration", verbs_pair_without_registration, true},
                          {"verbs to itself", verbs_to_itself, false}};
std::span<const Factory> g_factories = kShm;

/// How many connections were requested, and how often a packet had to wait.
[[maybe_unused]] uint64_t connects() {
  return g_shm_counters.connects + g_nic_counters.connects;
}
[[maybe_unused]] uint64_t waits() {
  return g_shm_counters.waits + g_nic_counters.waits;
}

[[maybe_unused]] void make(Pair& pair, int factory) {
  g_factories[size_t(factory)].make(pair);
}

bool has_packets(const Side& side, size_t count) {
  return side.sink->packets.size() >= count;
}

void choose_factories() {
  if (g_on_devices) g_factories = kVerbs;
  for (const Factory& factory : g_factories)
    printf("%td: %s\n", &factory - g_factories.data(), factory.name);
  fflush(stdout);
}

SUITE(.run = here_and_on_devices, .once = choose_factories);

}  // namespace
}  // namespace erdma::test
