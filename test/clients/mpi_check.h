#pragma once

/* Declarations that the phases of mpi_check share. Every phase is collective and leaves no
 * operation in flight. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

struct Phase {
  const char* name;
  void (*run)(void);
};

extern int rank, ranks;
extern int peer;             /* the other one of this rank's pair; -1 without */
extern int threads_allowed;  /* MPI_THREAD_MULTIPLE was granted */
extern unsigned long checks; /* comparisons made by this rank */

/* Ends the job if the condition does not hold. */
#define CHECK(condition)                                                                     \
  do {                                                                                       \
    ++checks;                                                                                \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "mpi_check: rank %d, %s:%d: not true: %s\n", rank, __FILE__, __LINE__, \
              #condition);                                                                   \
      MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
    }                                                                                        \
  } while (0)

uint64_t next_random(uint64_t* state);
uint32_t crc32_of(const void* data, size_t length);
void fill(void* data, size_t length, uint64_t seed);
void check_filled(const void* data, size_t length, uint64_t seed);
void* allocate(size_t length);

/* Memory of all ranks that peers access. in_ways_from() runs the body with a new window for each
 * way to make one, beginning with `way`. */
enum { kAllocated, kCreated, kDynamic, kWays };
struct Window {
  MPI_Win win;
  char* base;
  int way;
  MPI_Aint* addresses; /* of each rank's memory, if displacements are addresses */
};
void in_ways_from(int way, void (*body)(struct Window*));
MPI_Aint at(const struct Window* window, int target, size_t offset);

extern const struct Phase point_to_point_phases[], collective_phases[], thread_phases[],
    one_sided_phases[], atomic_phases[];
