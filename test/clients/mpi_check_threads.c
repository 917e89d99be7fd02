/* MPI_THREAD_MULTIPLE: every thread of every rank exchanges messages at the same time. */
#include <pthread.h>

#include "mpi_check.h"

enum { kThreads = 4, kRounds = 150, kThreadLargest = 100000 };

struct Work {
  MPI_Comm communicator; /* own or shared by all threads */
  int thread;
  int wrong;
};

static size_t length_of(int thread, int round) {
  uint64_t state = (uint64_t)thread << 32 | (uint64_t)round;
  return next_random(&state) % (round % 10 == 0 ? kThreadLargest : 2000);
}

static int same_as_filled(const char* data, size_t length, uint64_t seed) {
  char* expected = malloc(length ? length : 1);
  fill(expected, length, seed);
  const int same = memcmp(data, expected, length) == 0;
  free(expected);
  return same;
}

static void* talk(void* argument) {
  struct Work* work = argument;
  char *out = malloc(kThreadLargest), *in = malloc(kThreadLargest);
  for (int round = 0; round < kRounds; ++round) {
    const int tag = work->thread * kRounds + round;
    const size_t length = length_of(work->thread, round);
    MPI_Request requests[2];
    MPI_Status statuses[2];
    int count = -1;
    fill(out, length, (uint64_t)(rank * 100000 + tag));
    MPI_Irecv(in, kThreadLargest, MPI_CHAR, round % 3 ? peer : MPI_ANY_SOURCE, tag,
              work->communicator, &requests[0]);
    MPI_Isend(out, (int)length, MPI_CHAR, peer, tag, work->communicator, &requests[1]);
    MPI_Waitall(2, requests, statuses);
    MPI_Get_count(&statuses[0], MPI_CHAR, &count);
    work->wrong +=
        count != (int)length || !same_as_filled(in, length, (uint64_t)(peer * 100000 + tag));
  }
  free(out);
  free(in);
  return NULL;
}

static void run_threads(int own_communicators) {
  pthread_t threads[kThreads];
  struct Work work[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    work[i] = (struct Work){MPI_COMM_WORLD, i, 0};
    if (own_communicators) MPI_Comm_dup(MPI_COMM_WORLD, &work[i].communicator);
  }
  for (int i = 0; peer >= 0 && i < kThreads; ++i) {
    pthread_create(&threads[i], NULL, talk, &work[i]);
  }
  for (int i = 0; peer >= 0 && i < kThreads; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < kThreads; ++i) {
    CHECK(work[i].wrong == 0);
    checks += kRounds;
    if (own_communicators) MPI_Comm_free(&work[i].communicator);
  }
}

static void threads(void) {
  if (!threads_allowed) {
    if (rank == 0) printf("# threads: MPI_THREAD_MULTIPLE was not granted\n");
    return;
  }
  run_threads(0);
  MPI_Barrier(MPI_COMM_WORLD);
  run_threads(1);
}

/* Each thread runs collectives on a communicator of its own. */
static void* reduce(void* argument) {
  struct Work* work = argument;
  for (int i = 0; i < 100; ++i) {
    int own = rank + i, sum = -1;
    MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, work->communicator);
    work->wrong += sum != ranks * (ranks - 1) / 2 + i * ranks;
  }
  return NULL;
}

static void threaded_collectives(void) {
  pthread_t threads_of[kThreads];
  struct Work work[kThreads];
  if (!threads_allowed) return;
  for (int i = 0; i < kThreads; ++i) {
    work[i] = (struct Work){MPI_COMM_NULL, i, 0};
    MPI_Comm_dup(MPI_COMM_WORLD, &work[i].communicator);
  }
  for (int i = 0; i < kThreads; ++i) pthread_create(&threads_of[i], NULL, reduce, &work[i]);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads_of[i], NULL);
  for (int i = 0; i < kThreads; ++i) {
    CHECK(work[i].wrong == 0);
    MPI_Comm_free(&work[i].communicator);
  }
}

const struct Phase thread_phases[] = {
    {"threads", threads}, {"threaded_collectives", threaded_collectives}, {NULL, NULL}};
