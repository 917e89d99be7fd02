/* Collectives with results that can be computed, and communicators that are made and freed. */
#include "mpi_check.h"

static const int kCounts[] = {0, 1, 17, 1000, 30000, 400000};
enum { kKinds = sizeof kCounts / sizeof *kCounts };

static int value(int from, int to, int i) {
  return from * 1000003 + to * 10007 + i;
}

static int* block(int from, int to, int count) {
  int* data = allocate((size_t)count * sizeof *data);
  for (int i = 0; i < count; ++i) data[i] = value(from, to, i);
  return data;
}

static void check_block(const int* data, int from, int to, int count) {
  int same = 1;
  for (int i = 0; i < count; ++i) same &= data[i] == value(from, to, i);
  CHECK(same);
}

static void broadcast(void) {
  for (int k = 0; k < kKinds; ++k) {
    for (int root = 0; root < ranks; ++root) {
      const int count = kCounts[k];
      int* data = rank == root ? block(root, k, count) : allocate((size_t)count * sizeof(int));
      MPI_Request request;
      if (root % 2) {
        MPI_Ibcast(data, count, MPI_INT, root, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      } else {
        MPI_Bcast(data, count, MPI_INT, root, MPI_COMM_WORLD);
      }
      check_block(data, root, k, count);
      free(data);
    }
  }
}

static void scatter_gather(void) {
  for (int k = 0; k < kKinds - 1; ++k) {
    const int count = kCounts[k], root = k % ranks;
    int* all = allocate((size_t)(count * ranks) * sizeof(int));
    int* own = allocate((size_t)count * sizeof(int));
    for (int to = 0; to < ranks; ++to) {
      for (int i = 0; i < count; ++i) all[to * count + i] = value(root, to, i);
    }
    MPI_Scatter(all, count, MPI_INT, own, count, MPI_INT, root, MPI_COMM_WORLD);
    check_block(own, root, rank, count);
    memset(all, 0, (size_t)(count * ranks) * sizeof(int));
    MPI_Gather(own, count, MPI_INT, all, count, MPI_INT, root, MPI_COMM_WORLD);
    for (int to = 0; rank == root && to < ranks; ++to)
      check_block(all + to * count, root, to, count);
    MPI_Allgather(own, count, MPI_INT, all, count, MPI_INT, MPI_COMM_WORLD);
    for (int to = 0; to < ranks; ++to) check_block(all + to * count, root, to, count);
    free(all);
    free(own);
  }
}

/* Lengths that differ by rank, with a gap of three before each block. */
static int make_layout(int unit, int* counts, int* at) {
  int total = 0;
  for (int i = 0; i < ranks; ++i) {
    counts[i] = i * unit;
    at[i] = total + 3;
    total = at[i] + counts[i];
  }
  return total;
}

static void varying(void) {
  int* counts = allocate((size_t)ranks * sizeof(int));
  int* at = allocate((size_t)ranks * sizeof(int));
  for (int unit = 1; unit < 30000; unit *= 31) {
    const int total = make_layout(unit, counts, at);
    int* all = allocate((size_t)total * sizeof(int));
    int *own = block(rank, 0, counts[rank]), *back = allocate((size_t)counts[rank] * sizeof(int));
    MPI_Gatherv(own, counts[rank], MPI_INT, all, counts, at, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; rank == 0 && i < ranks; ++i) check_block(all + at[i], i, 0, counts[i]);
    MPI_Scatterv(all, counts, at, MPI_INT, back, counts[rank], MPI_INT, 0, MPI_COMM_WORLD);
    check_block(back, rank, 0, counts[rank]);
    MPI_Allgatherv(own, counts[rank], MPI_INT, all, counts, at, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < ranks; ++i) check_block(all + at[i], i, 0, counts[i]);
    free(all);
    free(own);
    free(back);
  }
  free(counts);
  free(at);
}

static void all_to_all(void) {
  for (int k = 0; k < kKinds - 1; ++k) {
    const int count = kCounts[k];
    int* out = allocate((size_t)(count * ranks) * sizeof(int));
    int* in = allocate((size_t)(count * ranks) * sizeof(int));
    MPI_Request request;
    for (int to = 0; to < ranks; ++to) {
      for (int i = 0; i < count; ++i) out[to * count + i] = value(rank, to, i);
    }
    if (k % 2) {
      MPI_Ialltoall(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD, &request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
      MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
    }
    for (int from = 0; from < ranks; ++from) check_block(in + from * count, from, rank, count);
    free(out);
    free(in);
  }
}

static void all_to_all_v(void) {
  const int unit = 700;
  int* counts[4];
  int total_out = 0, total_in = 0;
  for (int i = 0; i < 4; ++i) counts[i] = allocate((size_t)ranks * sizeof(int));
  for (int i = 0; i < ranks; ++i) {
    counts[0][i] = (rank + 2 * i) % 5 * unit; /* bytes from this rank to i */
    counts[1][i] = total_out;
    total_out += counts[0][i];
    counts[2][i] = (i + 2 * rank) % 5 * unit; /* bytes from i to this rank */
    counts[3][i] = total_in;
    total_in += counts[2][i];
  }
  int* out = allocate((size_t)total_out * sizeof(int));
  int* in = allocate((size_t)total_in * sizeof(int));
  for (int to = 0; to < ranks; ++to) {
    for (int i = 0; i < counts[0][to]; ++i) out[counts[1][to] + i] = value(rank, to, i);
  }
  MPI_Alltoallv(out, counts[0], counts[1], MPI_INT, in, counts[2], counts[3], MPI_INT,
                MPI_COMM_WORLD);
  for (int from = 0; from < ranks; ++from) {
    check_block(in + counts[3][from], from, rank, counts[2][from]);
  }
  for (int i = 0; i < 4; ++i) free(counts[i]);
  free(out);
  free(in);
}

/* Sums of integers in doubles are exact in any order of addition. */
static void reductions(void) {
  for (int k = 0; k < kKinds; ++k) {
    const int count = kCounts[k], sum_of_ranks = ranks * (ranks - 1) / 2;
    double* own = allocate((size_t)count * sizeof(double));
    double* sum = allocate((size_t)count * sizeof(double));
    MPI_Request request;
    int same = 1;
    for (int i = 0; i < count; ++i) own[i] = (double)rank * 3 + i;
    MPI_Allreduce(own, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; ++i) same &= sum[i] == 3.0 * sum_of_ranks + (double)i * ranks;
    MPI_Iallreduce(own, sum, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < count; ++i) same &= sum[i] == (ranks - 1) * 3.0 + i;
    MPI_Reduce(own, sum, count, MPI_DOUBLE, MPI_MIN, k % ranks, MPI_COMM_WORLD);
    for (int i = 0; rank == k % ranks && i < count; ++i) same &= sum[i] == i;
    CHECK(same);
    free(own);
    free(sum);
  }
}

static void scans(void) {
  for (int k = 0; k < kKinds; ++k) {
    const int count = kCounts[k];
    long* own = allocate((size_t)count * sizeof(long));
    long* sum = allocate((size_t)count * sizeof(long));
    int same = 1;
    for (int i = 0; i < count; ++i) own[i] = rank + i;
    MPI_Scan(own, sum, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; ++i)
      same &= sum[i] == (long)rank * (rank + 1) / 2 + (long)(rank + 1) * i;
    MPI_Exscan(own, sum, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; rank > 0 && i < count; ++i) {
      same &= sum[i] == (long)rank * (rank - 1) / 2 + (long)rank * i;
    }
    CHECK(same);
    free(own);
    free(sum);
  }
}

static void reduce_scatter(void) {
  int* counts = allocate((size_t)ranks * sizeof(int));
  for (int unit = 1; unit < 40000; unit *= 19) {
    int total = 0, before = 0, same = 1;
    for (int i = 0; i < ranks; ++i) {
      counts[i] = (i + 1) * unit;
      if (i < rank) before += counts[i];
      total += counts[i];
    }
    int* own = allocate((size_t)total * sizeof(int));
    int* sum = allocate((size_t)counts[rank] * sizeof(int));
    for (int i = 0; i < total; ++i) own[i] = rank + i;
    MPI_Reduce_scatter(own, sum, counts, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < counts[rank]; ++i) {
      same &= sum[i] == ranks * (ranks - 1) / 2 + ranks * (before + i);
    }
    CHECK(same);
    free(own);
    free(sum);
  }
  free(counts);
}

/* No rank leaves a barrier before all have entered it. A counter of rank 0 shows this. */
static void barriers(void) {
  for (int i = 0; i < 300; ++i) {
    int token = i, sum = -1;
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Allreduce(&token, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == i * ranks);
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

static void communicators(void) {
  for (int i = 0; i < 60; ++i) {
    MPI_Comm half, copy;
    int size, place, sum = -1;
    MPI_Comm_split(MPI_COMM_WORLD, (rank + i) % 2, -rank, &half);
    MPI_Comm_dup(half, &copy);
    MPI_Comm_size(copy, &size);
    MPI_Comm_rank(copy, &place);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, copy);
    int expected = 0, members = 0;
    for (int other = rank % 2; other < ranks; other += 2) {
      expected += other;
      ++members;
    }
    CHECK(size == members && sum == expected);
    /* Both communicators use the same tag and must keep the messages apart. */
    int got[2] = {-1, -1}, to = (place + 1) % size, from = (place + size - 1) % size;
    int sent[2] = {place, place + 1000};
    MPI_Request requests[4];
    MPI_Irecv(&got[1], 1, MPI_INT, from, 1, copy, &requests[0]);
    MPI_Irecv(&got[0], 1, MPI_INT, from, 1, half, &requests[1]);
    MPI_Isend(&sent[0], 1, MPI_INT, to, 1, half, &requests[2]);
    MPI_Isend(&sent[1], 1, MPI_INT, to, 1, copy, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    CHECK(got[0] == from && got[1] == from + 1000);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&half);
  }
}

const struct Phase collective_phases[] = {{"broadcast", broadcast},
                                          {"scatter_gather", scatter_gather},
                                          {"varying", varying},
                                          {"all_to_all", all_to_all},
                                          {"all_to_all_v", all_to_all_v},
                                          {"reductions", reductions},
                                          {"scans", scans},
                                          {"reduce_scatter", reduce_scatter},
                                          {"barriers", barriers},
                                          {"communicators", communicators},
                                          {NULL, NULL}};
