/* Times of collectives among ranks that are pinned in turn to the cores of BENCH_CORES="A B ...". A
 * line is "name_RANKS_BYTES us": the slowest rank's time, the median over blocks of calls. BYTES is
 * what a rank gives to each other one (alltoall, allgather), or the whole vector. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

enum { kMaxBlocks = 1000 };

static int rank, ranks;
static double *out, *in;
static int* counts;

static void bcast(int bytes) {
  MPI_Bcast(out, bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
}
static void allreduce(int bytes) {
  MPI_Allreduce(out, in, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}
static void alltoall(int bytes) {
  MPI_Alltoall(out, bytes, MPI_CHAR, in, bytes, MPI_CHAR, MPI_COMM_WORLD);
}
static void allgather(int bytes) {
  MPI_Allgather(out, bytes, MPI_CHAR, in, bytes, MPI_CHAR, MPI_COMM_WORLD);
}
static void reduce_scatter(int bytes) {
  for (int i = 0; i < ranks; ++i) counts[i] = bytes / 8 / ranks + (i < bytes / 8 % ranks);
  MPI_Reduce_scatter(out, in, counts, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}
static void barrier(int bytes) {
  (void)bytes;
  MPI_Barrier(MPI_COMM_WORLD);
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

/* Returns how often an operation of so many microseconds fits into the time for one figure. */
static int fitting(double each, int least, int most) {
  const char* budget = getenv("BENCH_BUDGET_MS");
  const double count = (budget ? atof(budget) : 20) * 1e3 / each;
  return count < least ? least : count > most ? most : (int)count;
}

static void measure(const char* name, void (*call)(int), int bytes) {
  static double own[kMaxBlocks], slowest[kMaxBlocks];
  const double guess = ranks * (2 + bytes / 1e3);
  const int each = guess < 20 ? (int)(20 / guess) + 1 : 1;
  const int blocks = fitting(guess * each, 5, kMaxBlocks);

  for (int i = 0; i < blocks * each / 10 + 2; ++i) call(bytes);
  for (int block = 0; block < blocks; ++block) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int i = 0; i < each; ++i) call(bytes);
    own[block] = (MPI_Wtime() - start) * 1e6 / each;
  }
  MPI_Reduce(own, slowest, blocks, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  qsort(slowest, (size_t)blocks, sizeof(double), compare);
  if (rank == 0) printf("%s_%d_%d %.6g\n", name, ranks, bytes, slowest[blocks / 2]);
  fflush(stdout);
}

static int pin(void) {
  const char* local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  const char* at = getenv("BENCH_CORES");
  long cores[CPU_SETSIZE];
  int known = 0;
  char* end;
  cpu_set_t set;

  if (!at) at = "0 1";
  for (long core; known < CPU_SETSIZE && (core = strtol(at, &end, 10), end != at); at = end)
    cores[known++] = core;
  if (known == 0) return 0;
  CPU_ZERO(&set);
  CPU_SET((size_t)cores[(local ? atoi(local) : 0) % known], &set);
  return sched_setaffinity(0, sizeof set, &set);
}

static void measure_size(int bytes) {
  measure("bcast", bcast, bytes);
  measure("allreduce", allreduce, bytes);
  measure("alltoall", alltoall, bytes);
  measure("allgather", allgather, bytes);
  measure("reduce_scatter", reduce_scatter, bytes);
}

int main(int argc, char** argv) {
  const char* at = getenv("BENCH_COLLECTIVE_SIZES");
  const size_t most = 1 << 20;
  char* end;

  if (pin() != 0) perror("sched_setaffinity");
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  out = calloc((size_t)ranks, most);
  in = calloc((size_t)ranks, most);
  counts = calloc((size_t)ranks, sizeof *counts);
  if (!out || !in || !counts) MPI_Abort(MPI_COMM_WORLD, 1);
  if (!at) at = "8 1024 16384 65536 1048576";
  for (long size; (size = strtol(at, &end, 10)) > 0 && end != at; at = end)
    if ((size_t)size <= most) measure_size((int)size);
  measure("barrier", barrier, 0);
  MPI_Finalize();
  return 0;
}
