/* Atomic operations of one-sided communication. They run only if they are named. */
#include <pthread.h>

#include "mpi_check.h"

/* Each rank adds to the memory of all ranks in one epoch, and the sums must be right. The maximum
 * is computed only with many elements: for few, Open MPI 4.1 does not ask whether btl/ofi supports
 * it atomically, which ends the process (osc_rdma_accumulate.c, btl_ofi_atomics.c). */
#define ACCUMULATE(window, type, mpi_type, count)                                             \
  do {                                                                                        \
    type* own = (type*)(void*)(window)->base;                                                 \
    type* out = allocate((size_t)(count) * sizeof *out);                                      \
    for (int i = 0; i < (count); ++i) own[i] = (type)(i % 50), out[i] = (type)(rank + i % 3); \
    MPI_Win_fence(0, (window)->win);                                                          \
    for (int to = 0; to < ranks; ++to)                                                        \
      MPI_Accumulate(out, count, mpi_type, to, at(window, to, 0), count, mpi_type, MPI_SUM,   \
                     (window)->win);                                                          \
    MPI_Win_fence(0, (window)->win);                                                          \
    int same = 1;                                                                             \
    for (int i = 0; i < (count); ++i)                                                         \
      same &= own[i] == (type)(i % 50 + ranks * (ranks - 1) / 2 + ranks * (i % 3));           \
    CHECK(same);                                                                              \
    if ((count) > 32) {                                                                       \
      for (int i = 0; i < (count); ++i) own[i] = (type)(i % 7);                               \
      MPI_Win_fence(0, (window)->win);                                                        \
      for (int to = 0; to < ranks; ++to)                                                      \
        MPI_Accumulate(out, count, mpi_type, to, at(window, to, 0), count, mpi_type, MPI_MAX, \
                       (window)->win);                                                        \
      MPI_Win_fence(0, (window)->win);                                                        \
      for (int i = 0; i < (count); ++i)                                                       \
        same &= own[i] == (type)(i % 7 > ranks - 1 + i % 3 ? i % 7 : ranks - 1 + i % 3);      \
      CHECK(same);                                                                            \
    }                                                                                         \
    free(out);                                                                                \
  } while (0)

static void accumulate_body(struct Window* window) {
  static const int counts[] = {1, 2, 33, 5000};
  for (size_t k = 0; k < sizeof counts / sizeof *counts; ++k) {
    ACCUMULATE(window, signed char, MPI_SIGNED_CHAR, counts[k]);
    ACCUMULATE(window, int32_t, MPI_INT32_T, counts[k]);
    ACCUMULATE(window, int64_t, MPI_INT64_T, counts[k]);
    ACCUMULATE(window, float, MPI_FLOAT, counts[k]);
    ACCUMULATE(window, double, MPI_DOUBLE, counts[k]);
  }
}

/* Draws tickets: each is drawn once, and none is missing. */
#define TICKETS(window, type, mpi_type)                                                       \
  do {                                                                                        \
    enum { kDraws = 200 };                                                                    \
    const int total = kDraws * ranks;                                                         \
    const type one = 1;                                                                       \
    type* own = allocate(kDraws * sizeof(type));                                              \
    type* all = allocate((size_t)total * sizeof(type));                                       \
    char* seen = allocate((size_t)total);                                                     \
    if (rank == 0) memset((window)->base, 0, 8);                                              \
    MPI_Barrier(MPI_COMM_WORLD);                                                              \
    MPI_Win_lock_all(0, (window)->win);                                                       \
    for (int i = 0; i < kDraws; ++i) {                                                        \
      MPI_Fetch_and_op(&one, &own[i], mpi_type, 0, at(window, 0, 0), MPI_SUM, (window)->win); \
      MPI_Win_flush(0, (window)->win);                                                        \
    }                                                                                         \
    MPI_Win_unlock_all((window)->win);                                                        \
    MPI_Allgather(own, kDraws, mpi_type, all, kDraws, mpi_type, MPI_COMM_WORLD);              \
    for (int i = 0; i < total; ++i) {                                                         \
      CHECK(all[i] >= 0 && all[i] < total && !seen[all[i]]);                                  \
      seen[all[i]] = 1;                                                                       \
    }                                                                                         \
    free(own);                                                                                \
    free(all);                                                                                \
    free(seen);                                                                               \
  } while (0)

static void fetch_and_op_body(struct Window* window) {
  TICKETS(window, int32_t, MPI_INT32_T);
  TICKETS(window, int64_t, MPI_INT64_T);
}

/* Exactly one of the ranks that claim a slot gets it, and all others are told which one. No rank
 * claims a slot of its own, nor one in memory that Open MPI 4.1 allocates. Open MPI takes memory of
 * a peer that it can address for registered memory, and dereferences NULL (osc_rdma_accumulate.c,
 * ompi_osc_rdma_compare_and_swap). */
static void compare_and_swap_body(struct Window* window) {
  enum { kSlots = 100 };
  int64_t winners[kSlots] = {0}, known[kSlots], won = 0, total = 0;
  const int64_t nobody = 0, me = rank + 1;
  MPI_Win_lock_all(0, window->win);
  for (int i = 0; i < kSlots; ++i) {
    const int target = i % ranks;
    if (target == rank) continue;
    MPI_Compare_and_swap(&me, &nobody, &winners[i], MPI_INT64_T, target,
                         at(window, target, (size_t)i * 8), window->win);
    MPI_Win_flush(target, window->win);
    won += winners[i] == nobody;
    if (winners[i] == nobody) winners[i] = me;
  }
  MPI_Win_unlock_all(window->win);
  MPI_Allreduce(winners, known, kSlots, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  for (int i = 0; i < kSlots; ++i) CHECK(i % ranks == rank || winners[i] == known[i]);
  MPI_Allreduce(&won, &total, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  CHECK(total == kSlots);
}

/* Several elements at a time return their values from before one origin's change. */
static void get_accumulate_body(struct Window* window) {
  enum { kCount = 700, kRounds = 30 };
  int64_t *ones = allocate(kCount * 8), *before = allocate(kCount * 8), last = -1;
  for (int i = 0; i < kCount; ++i) ones[i] = 1;
  MPI_Win_lock_all(0, window->win);
  for (int round = 0; round < kRounds; ++round) {
    MPI_Get_accumulate(ones, kCount, MPI_INT64_T, before, kCount, MPI_INT64_T, 0, at(window, 0, 0),
                       kCount, MPI_INT64_T, MPI_SUM, window->win);
    MPI_Win_flush(0, window->win);
    CHECK(before[0] > last && before[0] < kRounds * ranks);
    last = before[0];
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Get_accumulate(NULL, 0, MPI_INT64_T, before, kCount, MPI_INT64_T, 0, at(window, 0, 0), kCount,
                     MPI_INT64_T, MPI_NO_OP, window->win);
  MPI_Win_flush(0, window->win);
  MPI_Win_unlock_all(window->win);
  int same = 1;
  for (int i = 0; i < kCount; ++i) same &= before[i] == kRounds * ranks;
  CHECK(same);
  free(ones);
  free(before);
}

struct Drawer {
  pthread_t thread;
  struct Window* window;
  int64_t sum;
};

static void* draw(void* argument) {
  struct Drawer* drawer = argument;
  const int64_t one = 1;
  for (int i = 0; i < 100; ++i) {
    int64_t ticket = -1;
    MPI_Fetch_and_op(&one, &ticket, MPI_INT64_T, i % ranks, at(drawer->window, i % ranks, 0),
                     MPI_SUM, drawer->window->win);
    MPI_Win_flush(i % ranks, drawer->window->win);
    drawer->sum += ticket;
  }
  return NULL;
}

/* The tickets of all threads of all ranks add up to the counters. */
static void thread_body(struct Window* window) {
  enum { kThreads = 4 };
  struct Drawer drawers[kThreads] = {{0}};
  int64_t sum = 0, total = 0, expected = 0;
  if (!threads_allowed) return;
  MPI_Win_lock_all(0, window->win);
  for (int i = 0; i < kThreads; ++i) {
    drawers[i].window = window;
    CHECK(pthread_create(&drawers[i].thread, NULL, draw, &drawers[i]) == 0);
  }
  for (int i = 0; i < kThreads; ++i) {
    pthread_join(drawers[i].thread, NULL);
    sum += drawers[i].sum;
  }
  MPI_Win_unlock_all(window->win);
  MPI_Barrier(MPI_COMM_WORLD);
  const int64_t drawn = *(int64_t*)(void*)window->base;
  const int64_t of_mine = drawn * (drawn - 1) / 2;
  MPI_Allreduce(&sum, &total, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(&of_mine, &expected, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  CHECK(total == expected);
}

static void accumulate(void) {
  in_ways_from(kAllocated, accumulate_body);
}
static void fetch_and_op(void) {
  in_ways_from(kAllocated, fetch_and_op_body);
}
static void compare_and_swap(void) {
  in_ways_from(kCreated, compare_and_swap_body);
}
static void get_accumulate(void) {
  in_ways_from(kAllocated, get_accumulate_body);
}
static void atomic_threads(void) {
  in_ways_from(kAllocated, thread_body);
}

const struct Phase atomic_phases[] = {{"accumulate", accumulate},
                                      {"fetch_and_op", fetch_and_op},
                                      {"compare_and_swap", compare_and_swap},
                                      {"get_accumulate", get_accumulate},
                                      {"atomic_threads", atomic_threads},
                                      {NULL, NULL}};
