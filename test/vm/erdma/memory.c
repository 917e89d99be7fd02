// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/* Access to the host's memory by address, through page tables and through keys. */
#include "inside.h"

#define HOST_PAGE 4096u

void* erm_memory(struct erm_device* device, uint64_t address, uint64_t length, uint32_t alignment) {
  if (address & (alignment - 1) || !length || address + length < address) return NULL;
  return device->hooks->memory(device->context, address, length);
}

/* Sets `room` to the number of bytes that follow in the same page of the host. */
void* erm_at(struct erm_device* device, const struct erm_pages* pages, uint64_t at,
             uint32_t* room) {
  uint64_t place = pages->offset + at, page = place >> pages->shift, base;

  if (page >= pages->count) return NULL;
  if (pages->table) {
    const uint64_t* entry = erm_memory(device, pages->address[0] + page * 8, 8, 8);

    if (!entry) return NULL;
    base = *entry;
  } else {
    if (page >= sizeof(pages->address) / sizeof(pages->address[0])) return NULL;
    base = pages->address[page];
  }
  base += place & ((1ULL << pages->shift) - 1);
  *room = HOST_PAGE - (base & (HOST_PAGE - 1));
  return erm_memory(device, base, *room, 1);
}

void* erm_block(struct erm_device* device, const struct erm_pages* pages, uint32_t index,
                uint32_t depth) {
  uint32_t room;
  void* block = erm_at(device, pages, (uint64_t)(index & (depth - 1)) * ERM_BLOCK, &room);

  return block && room >= ERM_BLOCK && !(room & 7) ? block : NULL;
}

/* Returns 0, or the syndrome of an error at the local side. */
static uint8_t find(const struct erm_side* side, const struct erm_part* part,
                    const struct erm_mr** found) {
  const struct erm_device* device = side->device;
  uint32_t index = part->key >> 8;
  const struct erm_mr* mr = index < device->most_mrs ? &device->mr[index] : NULL;

  if (!mr || !mr->valid || mr->key != (part->key & 0xff)) return ERM_LOCAL_KEY;
  if (mr->pd != side->pd) return ERM_LOCAL_PD;
  if ((mr->rights & side->rights) != side->rights) return ERM_LOCAL_RIGHTS;
  /* An address below the start is far beyond the end, too, as it wraps. */
  if (!mr->dma && (part->length > mr->size || part->address - mr->start > mr->size - part->length))
    return ERM_LOCAL_RANGE;
  *found = mr;
  return ERM_SUCCESS;
}

uint8_t erm_check_side(const struct erm_side* side, uint64_t* length) {
  const struct erm_mr* mr;
  uint32_t i;

  *length = 0;
  for (i = 0; i < side->parts; i++) {
    uint8_t bad =
        side->part[i].length && !side->bytes ? find(side, &side->part[i], &mr) : ERM_SUCCESS;

    if (bad) return bad;
    *length += side->part[i].length;
  }
  return ERM_SUCCESS;
}

/* Returns the address of byte `at` of a side, and the number of contiguous bytes there. */
static void* pointer(const struct erm_side* side, uint64_t at, uint32_t* room) {
  const struct erm_mr* mr;
  struct erm_part one;
  uint32_t i, page;
  void* there;

  for (i = 0; i < side->parts && at >= side->part[i].length; i++) at -= side->part[i].length;
  if (i == side->parts) return NULL;
  one = (struct erm_part){side->part[i].address + at, 1, side->part[i].key};
  *room = side->part[i].length - (uint32_t)at;
  if (side->bytes) return (void*)(side->bytes + at);
  if (find(side, &one, &mr)) return NULL;
  if (mr->dma) {
    page = HOST_PAGE - (one.address & (HOST_PAGE - 1));
    there = erm_memory(side->device, one.address, page, 1);
  } else {
    there = erm_at(side->device, &mr->pages, one.address - mr->start, &page);
  }
  if (*room > page) *room = page;
  return there;
}

/* Both sides may be the same memory, if two QPs belong to one process. */
bool erm_copy(const struct erm_side* to, const struct erm_side* from, uint64_t at,
              uint32_t length) {
  while (length) {
    uint32_t room, other, now;
    void* target = pointer(to, at, &room);
    const void* source = target ? pointer(from, at, &other) : NULL;

    if (!source) return false;
    now = room < other ? room : other;
    if (now > length) now = length;
    memmove(target, source, now);
    at += now;
    length -= now;
  }
  return true;
}
