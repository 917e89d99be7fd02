/* One-sided communication on windows made in every way. It runs only if it is named. */
#include "mpi_check.h"

enum { kWindow = 3 << 20 };

static struct Window open_window(int way) {
  struct Window window = {.way = way, .addresses = allocate((size_t)ranks * sizeof(MPI_Aint))};
  if (way == kAllocated) {
    MPI_Win_allocate(kWindow, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window.base, &window.win);
    memset(window.base, 0, kWindow);
  } else {
    window.base = allocate(kWindow);
  }
  if (way == kCreated)
    MPI_Win_create(window.base, kWindow, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window.win);
  if (way == kDynamic) {
    MPI_Aint own;
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window.win);
    MPI_Win_attach(window.win, window.base, kWindow);
    MPI_Get_address(window.base, &own);
    MPI_Allgather(&own, 1, MPI_AINT, window.addresses, 1, MPI_AINT, MPI_COMM_WORLD);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return window;
}

static void close_window(struct Window* window) {
  MPI_Barrier(MPI_COMM_WORLD);
  if (window->way == kDynamic) MPI_Win_detach(window->win, window->base);
  MPI_Win_free(&window->win);
  if (window->way != kAllocated) free(window->base);
  free(window->addresses);
}

MPI_Aint at(const struct Window* window, int target, size_t offset) {
  return window->addresses[target] + (MPI_Aint)offset;
}

/* Dynamic windows are used only if all ranks are on one node. Otherwise, Open MPI 4.1 takes a lock
 * that it holds, and hangs (osc_rdma_dynamic.c: ompi_osc_rdma_find_dynamic_region,
 * ..._refresh_dynamic_region). */
static int ways(void) {
  MPI_Comm node;
  int size;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &size);
  MPI_Comm_free(&node);
  MPI_Allreduce(MPI_IN_PLACE, &size, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return size == ranks ? kWays : kDynamic;
}

void in_ways_from(int way, void (*body)(struct Window*)) {
  for (const int end = ways(); way < end; ++way) {
    struct Window window = open_window(way);
    body(&window);
    close_window(&window);
  }
}

static int right(void) {
  return (rank + 1) % ranks;
}
static int left(void) {
  return (rank + ranks - 1) % ranks;
}

static const size_t kLengths[] = {1, 7, 8, 64, 4097, 65536, (1 << 20) + 3};
enum { kLengthKinds = sizeof kLengths / sizeof *kLengths, kOffset = 5 };

static uint64_t seed_of(int owner, int k) {
  return (uint64_t)(owner * 100 + k);
}

/* Each rank puts to its right neighbour. Then it gets from its left neighbour what that one
 * received from its own left. */
static void fence_body(struct Window* window) {
  char *out = allocate(kWindow), *in = allocate(kWindow);
  for (int k = 0; k < kLengthKinds; ++k) {
    const int length = (int)kLengths[k];
    fill(out, kLengths[k], seed_of(rank, k));
    MPI_Win_fence(MPI_MODE_NOPRECEDE, window->win);
    MPI_Put(out, length, MPI_BYTE, right(), at(window, right(), kOffset), length, MPI_BYTE,
            window->win);
    MPI_Win_fence(0, window->win);
    check_filled(window->base + kOffset, kLengths[k], seed_of(left(), k));
    MPI_Get(in, length, MPI_BYTE, left(), at(window, left(), kOffset), length, MPI_BYTE,
            window->win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window->win);
    check_filled(in, kLengths[k], seed_of((left() + ranks - 1) % ranks, k));
  }
  free(out);
  free(in);
}

/* Two groups of one rank each: the left neighbour exposes the memory that this rank writes, and
 * this rank exposes memory to the right one. */
static void post_start_body(struct Window* window) {
  const int to = right(), from = left();
  MPI_Group world, targets, origins;
  char* out = allocate(kWindow);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, 1, &to, &targets);
  MPI_Group_incl(world, 1, &from, &origins);
  for (int k = 0; k < kLengthKinds; ++k) {
    fill(out, kLengths[k], seed_of(rank, k));
    MPI_Win_post(origins, 0, window->win);
    MPI_Win_start(targets, 0, window->win);
    MPI_Put(out, (int)kLengths[k], MPI_BYTE, to, at(window, to, kOffset), (int)kLengths[k],
            MPI_BYTE, window->win);
    MPI_Win_complete(window->win);
    MPI_Win_wait(window->win);
    check_filled(window->base + kOffset, kLengths[k], seed_of(from, k));
  }
  MPI_Group_free(&world);
  MPI_Group_free(&targets);
  MPI_Group_free(&origins);
  free(out);
}

/* Only the exclusive lock protects the counter. */
static void lock_body(struct Window* window) {
  enum { kRounds = 100 };
  for (int i = 0; i < kRounds; ++i) {
    const int target = i % ranks;
    uint64_t value = 0;
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, window->win);
    MPI_Get(&value, 1, MPI_UINT64_T, target, at(window, target, 0), 1, MPI_UINT64_T, window->win);
    MPI_Win_flush(target, window->win);
    ++value;
    MPI_Put(&value, 1, MPI_UINT64_T, target, at(window, target, 0), 1, MPI_UINT64_T, window->win);
    MPI_Win_unlock(target, window->win);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  uint64_t total = 0;
  for (int target = 0; target < ranks; ++target) {
    uint64_t value = 0;
    MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window->win);
    MPI_Get(&value, 1, MPI_UINT64_T, target, at(window, target, 0), 1, MPI_UINT64_T, window->win);
    MPI_Win_unlock(target, window->win);
    total += value;
  }
  CHECK(total == (uint64_t)(kRounds * ranks));
}

/* Every rank writes its part of every window and reads it back, with and without requests. */
static void flush_body(struct Window* window) {
  enum { kPart = 50001 };
  char *out = allocate(kPart), *in = allocate(kPart);
  MPI_Win_lock_all(0, window->win);
  for (int i = 0; i < 20 * ranks; ++i) {
    const int target = i % ranks, length = i % 3 ? kPart : i + 1;
    const MPI_Aint place = at(window, target, (size_t)(rank * kPart));
    MPI_Request request;
    fill(out, (size_t)length, seed_of(rank, i));
    memset(in, 0, (size_t)length);
    if (i % 2) {
      MPI_Rput(out, length, MPI_BYTE, target, place, length, MPI_BYTE, window->win, &request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      MPI_Win_flush(target, window->win);
      MPI_Rget(in, length, MPI_BYTE, target, place, length, MPI_BYTE, window->win, &request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
      MPI_Put(out, length, MPI_BYTE, target, place, length, MPI_BYTE, window->win);
      MPI_Win_flush_all(window->win);
      MPI_Get(in, length, MPI_BYTE, target, place, length, MPI_BYTE, window->win);
      MPI_Win_flush_local(target, window->win);
    }
    check_filled(in, (size_t)length, seed_of(rank, i));
  }
  MPI_Win_unlock_all(window->win);
  free(out);
  free(in);
}

/* Reads every fifth word of the target into every third word here. */
static void strided_body(struct Window* window) {
  enum { kCount = 2000 };
  int32_t *own = (int32_t*)(void*)window->base, *in = allocate(3 * kCount * 4);
  MPI_Datatype here, there;
  MPI_Type_vector(kCount, 1, 3, MPI_INT32_T, &here);
  MPI_Type_vector(kCount, 1, 5, MPI_INT32_T, &there);
  MPI_Type_commit(&here);
  MPI_Type_commit(&there);
  for (int i = 0; i < 5 * kCount; ++i) own[i] = rank * 100000 + i;
  memset(in, -1, 3 * kCount * 4);
  MPI_Win_fence(0, window->win);
  MPI_Get(in, 1, here, right(), at(window, right(), 0), 1, there, window->win);
  MPI_Win_fence(0, window->win);
  int same = 1;
  for (int i = 0; i < 3 * kCount; ++i) same &= in[i] == (i % 3 ? -1 : right() * 100000 + i / 3 * 5);
  CHECK(same);
  MPI_Type_free(&here);
  MPI_Type_free(&there);
  free(in);
}

static void fences(void) {
  in_ways_from(kAllocated, fence_body);
}
static void post_start(void) {
  in_ways_from(kAllocated, post_start_body);
}
static void locks(void) {
  in_ways_from(kAllocated, lock_body);
}
static void flushes(void) {
  in_ways_from(kAllocated, flush_body);
}
static void strided(void) {
  in_ways_from(kAllocated, strided_body);
}

const struct Phase one_sided_phases[] = {{"fences", fences},   {"post_start", post_start},
                                         {"locks", locks},     {"flushes", flushes},
                                         {"strided", strided}, {NULL, NULL}};
