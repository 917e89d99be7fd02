/* mpi_quick: a short MPI job whose results are checked byte by byte.
 *
 * Every rank sends to its neighbour messages of all sizes up to 4 MiB; all ranks add up, exchange
 * and receive a broadcast of 32 MiB; ranks 0 and 1 measure. Prints "result right" and the figures.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mpi.h>

enum { largest = 4 << 20, broadcast = 32 << 20, warmup = 100 };

static int rank, ranks;

static void fail(const char* what, size_t size) {
  fprintf(stderr, "mpi_quick: rank %d: %s is wrong at %zu bytes\n", rank, what, size);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char pattern(int from, size_t size, size_t at) {
  return (unsigned char)(at * 7 + at / 251 + size + (size_t)from * 31);
}

static void fill(unsigned char* buffer, int from, size_t size) {
  for (size_t i = 0; i < size; ++i) buffer[i] = pattern(from, size, i);
}

static void check(const unsigned char* buffer, int from, size_t size, const char* what) {
  for (size_t i = 0; i < size; ++i)
    if (buffer[i] != pattern(from, size, i)) fail(what, size);
}

static void ring(unsigned char* out, unsigned char* in) {
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  for (size_t size = 1; size <= largest; size = size < 64 ? size + 13 : size * 2 + 1) {
    MPI_Status status;
    int count = 0;
    fill(out, rank, size);
    memset(in, 0, size);
    MPI_Sendrecv(out, (int)size, MPI_BYTE, next, 1, in, (int)size, MPI_BYTE, previous, 1,
                 MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    if ((size_t)count != size) fail("length of a neighbour's message", size);
    check(in, previous, size, "a neighbour's message");
  }
}

static void collectives(unsigned char* buffer) {
  long one = rank + 1, sum = 0;
  MPI_Allreduce(&one, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (sum != (long)ranks * (ranks + 1) / 2) fail("MPI_Allreduce", sizeof(sum));

  int* to = calloc((size_t)ranks, sizeof(int));
  int* from = calloc((size_t)ranks, sizeof(int));
  if (!to || !from) MPI_Abort(MPI_COMM_WORLD, 1);
  for (int i = 0; i < ranks; ++i) to[i] = rank * 1000 + i;
  MPI_Alltoall(to, 1, MPI_INT, from, 1, MPI_INT, MPI_COMM_WORLD);
  for (int i = 0; i < ranks; ++i)
    if (from[i] != i * 1000 + rank) fail("MPI_Alltoall", sizeof(int));
  free(to);
  free(from);

  if (rank == 0) fill(buffer, 0, broadcast);
  MPI_Bcast(buffer, broadcast, MPI_BYTE, 0, MPI_COMM_WORLD);
  check(buffer, 0, broadcast, "MPI_Bcast");
}

/* Half of a round trip between ranks 0 and 1, in microseconds. */
static double half_round_trip(unsigned char* buffer, int size, int rounds) {
  double begin = 0;
  for (int i = 0; i < warmup / 10 + rounds; ++i) {
    if (i == warmup / 10) begin = MPI_Wtime();
    if (rank == 0) {
      MPI_Send(buffer, size, MPI_BYTE, 1, 2, MPI_COMM_WORLD);
      MPI_Recv(buffer, size, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
      MPI_Recv(buffer, size, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(buffer, size, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
    }
  }
  return (MPI_Wtime() - begin) * 1e6 / (2.0 * rounds);
}

/* Ranks 0 and 1 measure; the others sleep meanwhile, so that they take no core away. */
static void measure(unsigned char* buffer) {
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank >= 2) {
    int over = 0;
    while (!over) {
      usleep(5000);
      MPI_Iprobe(0, 3, MPI_COMM_WORLD, &over, MPI_STATUS_IGNORE);
    }
    MPI_Recv(NULL, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return;
  }
  const double small = half_round_trip(buffer, 8, 2000);
  const double large = half_round_trip(buffer, 1 << 20, 200);
  if (rank != 0) return;
  for (int i = 2; i < ranks; ++i) MPI_Send(NULL, 0, MPI_BYTE, i, 3, MPI_COMM_WORLD);
  printf("%d ranks: result right; 8 B in %.2f us, 1 MiB at %.2f GB/s\n", ranks, small,
         (1 << 20) / large / 1e3);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  unsigned char* out = malloc(broadcast);
  unsigned char* in = malloc(largest);
  if (!out || !in || ranks < 2) {
    fprintf(stderr, "mpi_quick: needs two ranks and %d MiB\n", (broadcast + largest) >> 20);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  memset(out, 0, broadcast);
  ring(out, in);
  collectives(out);
  measure(out);
  free(in);
  free(out);
  MPI_Finalize();
  return 0;
}
