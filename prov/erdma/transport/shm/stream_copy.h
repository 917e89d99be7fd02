#pragma once

#include <cstddef>

/// Copying past the cache. Lines that one core wrote and another reads cross slowly while they are
/// dirty in the writer's cache; streaming stores put them where both cores reach them.
namespace erdma::transport::shm {

using CopyFunction = void (*)(void* to, const void* from, size_t length);

/// memcpy with streaming stores, which complete before any later store of this thread becomes
/// visible. Plain memcpy where the machine has no such stores.
void stream_copy(void* to, const void* from, size_t length) noexcept;
void plain_copy(void* to, const void* from, size_t length) noexcept;

}  // namespace erdma::transport::shm
