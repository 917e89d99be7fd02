/* Half round trips and message rate between two ranks, each pinned to a core: what "fi_pair_bench
 * pair" measures, through MPI. Lines "key value" on stdout. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mpi.h>

enum { kWindow = 64, kMaxBlocks = 2000 };

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

/* Median over blocks of turns: what else runs on the host spoils single blocks only. */
static void half_round_trip(int length, int blocks, int count) {
  static double samples[kMaxBlocks];

  turns(length, blocks * count / 10 + 20);
  for (int block = 0; block < blocks; ++block) {
    const double start = MPI_Wtime();
    turns(length, count);
    samples[block] = (MPI_Wtime() - start) * 1e6 / count / 2;
  }
  qsort(samples, (size_t)blocks, sizeof(double), compare);
  if (rank == 0) printf("half_%d %.5f\n", length, samples[blocks / 2]);
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

static void message_rate(void) {
  double samples[5];

  rate(200);
  for (int block = 0; block < 5; ++block) samples[block] = rate(1500);
  qsort(samples, 5, sizeof(double), compare);
  if (rank == 0) printf("rate_acked %.5f\n", samples[2]);
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

int main(int argc, char** argv) {
  int ranks;

  if (pin() != 0) perror("sched_setaffinity");
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  out = malloc(4 << 20);
  in = malloc(4 << 20);
  if (ranks != 2 || !out || !in) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(out, 1, 4 << 20);
  memset(in, 0, 4 << 20);
  /* At leisure, so that a provider's own thread can set up what busy peers get. */
  for (int i = 0; i < 200; ++i) {
    turns(8, 1);
    usleep(500);
  }
  half_round_trip(8, 2000, 20);
  half_round_trip(4096, 1000, 10);
  half_round_trip(64 << 10, 1000, 1);
  half_round_trip(1 << 20, 150, 1);
  half_round_trip(4 << 20, 50, 1);
  message_rate();
  MPI_Finalize();
  return 0;
}
