/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Differences between the guest's kernel and a test: memory allocation, and a few functions. */
#pragma once

#ifdef __KERNEL__
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>
#else
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the model takes the words of requests as they lie"
#endif

#ifdef __KERNEL__
static inline void* erm_allocate(size_t count, size_t size) {
  return kvcalloc(count, size, GFP_KERNEL);
}
static inline void erm_release(void* memory) {
  kvfree(memory);
}
#else
static inline void* erm_allocate(size_t count, size_t size) {
  return calloc(count, size);
}
static inline void erm_release(void* memory) {
  free(memory);
}
#endif

/* Access to words that host and adapter share. Writes before a store are visible after the load
 * that sees it. */
static inline uint64_t erm_load(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
static inline void erm_store(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
static inline void erm_store_half(uint32_t* word, uint32_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
