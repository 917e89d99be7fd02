/* Half round trips and message rate between two ranks, each pinned to a core: the figures of
 * "fi_pair_bench curves", through MPI. Prints lines "key value" on stdout. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mpi.h>

enum { kWindow = 64, kMaxBlocks = 2000, kMost = 4 << 20 };

static int rank;
static char *out, *in;

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void turns(int length, int count) {
  for (int i = 0; i < count; ++i) {
    if (rank == 0) MPI_Send(out, length, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
    MPI_Recv(in, length, MPI_CHAR, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(out, length, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
  }
}

/* Prints the median over blocks of turns, as other load on the host affects only some blocks. */
static void half_round_trip(int length, int blocks, int count) {
  static double samples[kMaxBlocks];

  turns(length, blocks * count / 10 + 20);
  for (int block = 0; block < blocks; ++block) {
    const double start = MPI_Wtime();
    turns(length, count);
    samples[block] = (MPI_Wtime() - start) * 1e6 / count / 2;
  }
  qsort(samples, (size_t)blocks, sizeof(double), compare);
  if (rank == 0) printf("half_%d %.6g\n", length, samples[blocks / 2]);
}

static double rate(int windows) {
  static char data[kWindow][8];
  MPI_Request requests[kWindow];
  const double start = MPI_Wtime();

  for (int i = 0; i < windows; ++i) {
    for (int k = 0; k < kWindow; ++k) {
      if (rank == 0) {
        MPI_Isend(data[k], 8, MPI_CHAR, 1, 2, MPI_COMM_WORLD, &requests[k]);
      } else {
        MPI_Irecv(data[k], 8, MPI_CHAR, 0, 2, MPI_COMM_WORLD, &requests[k]);
      }
    }
    MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
    if (rank == 0) {
      MPI_Recv(in, 8, MPI_CHAR, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
      MPI_Send(out, 8, MPI_CHAR, 0, 3, MPI_COMM_WORLD);
    }
  }
  return (double)kWindow * windows / ((MPI_Wtime() - start) * 1e6);
}

static void message_rate(int windows) {
  double samples[5];

  rate(windows / 7 + 1);
  for (int block = 0; block < 5; ++block) samples[block] = rate(windows);
  qsort(samples, 5, sizeof(double), compare);
  if (rank == 0) printf("rate_acked %.6g\n", samples[2]);
}

static int pin(void) {
  const char* local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  const char* text = getenv("BENCH_CORES");
  int cores[2] = {0, 1};
  cpu_set_t set;

  if (text) sscanf(text, "%d %d", &cores[0], &cores[1]);
  CPU_ZERO(&set);
  CPU_SET((size_t)cores[local ? atoi(local) & 1 : 0], &set);
  return sched_setaffinity(0, sizeof set, &set);
}

/* Returns how often an operation of so many microseconds fits into the time for one figure. */
static int fitting(double each, int least, int most) {
  const char* budget = getenv("BENCH_BUDGET_MS");
  const double count = (budget ? atof(budget) : 20) * 1e3 / each;
  return count < least ? least : count > most ? most : (int)count;
}

static void sizes(void) {
  const char* at = getenv("BENCH_SIZES");
  char* end;

  if (!at) at = "8 4096 65536 1048576 4194304";
  for (long size; (size = strtol(at, &end, 10)) > 0 && end != at; at = end) {
    const double half = 0.3 + (double)size / 8e3;
    const int count = 5 / half < 1 ? 1 : (int)(5 / half);
    if (size <= kMost) half_round_trip((int)size, fitting(half * count * 2, 5, kMaxBlocks), count);
  }
}

int main(int argc, char** argv) {
  int ranks;

  if (pin() != 0) perror("sched_setaffinity");
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  out = malloc(kMost);
  in = malloc(kMost);
  if (ranks != 2 || !out || !in) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(out, 1, kMost);
  memset(in, 0, kMost);
  /* These slow turns give a provider's own thread the time to set up resources for busy peers. */
  for (int i = 0; i < 200; ++i) {
    turns(8, 1);
    usleep(500);
  }
  sizes();
  message_rate(fitting(13, 10, 1500));
  MPI_Finalize();
  return 0;
}
