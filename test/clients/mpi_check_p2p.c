/* Point-to-point messages: lengths, datatypes, storms, wildcards, probes, cancel, send modes and
 * truncation. */
#include "mpi_check.h"

enum { kLargest = 64 << 20, kStorm = 3000, kStormLargest = 40000 };

/* ---- lengths */

static void exchange(char* out, char* in, size_t length) {
  const uint64_t seed_of_peer = length * 64 + (uint64_t)peer;
  MPI_Status status;
  int count = -1;

  fill(out, length, length * 64 + (size_t)rank);
  memset(in, 0x55, length + 8);
  if (rank & 1) {
    MPI_Recv(in, (int)length + 8, MPI_CHAR, peer, 3, MPI_COMM_WORLD, &status);
    MPI_Send(out, (int)length, MPI_CHAR, peer, 3, MPI_COMM_WORLD);
  } else {
    MPI_Send(out, (int)length, MPI_CHAR, peer, 3, MPI_COMM_WORLD);
    MPI_Recv(in, (int)length + 8, MPI_CHAR, peer, 3, MPI_COMM_WORLD, &status);
  }
  MPI_Get_count(&status, MPI_CHAR, &count);
  CHECK(count == (int)length && status.MPI_SOURCE == peer && status.MPI_TAG == 3);
  for (int i = 0; i < 8; ++i) CHECK(in[length + (size_t)i] == 0x55); /* nothing past the end */
  fill(out, length, seed_of_peer);
  CHECK(crc32_of(in, length) == crc32_of(out, length));
}

static void lengths(void) {
  if (peer < 0) return;
  /* A second pair at 64 MiB would add memory, not coverage. */
  const size_t largest = rank < 2 ? kLargest : 1 << 20;
  char *out = allocate(largest + 1), *in = allocate(largest + 16);
  exchange(out, in, 0);
  for (size_t power = 1; power <= largest; power *= 2) {
    for (size_t length = power - 1; length <= power + 1; ++length) exchange(out, in, length);
  }
  free(out);
  free(in);
}

/* ---- datatypes */

struct Record {
  char letter;
  double value[3];
  short number;
};

static MPI_Datatype record_type(void) {
  int lengths_of[] = {1, 3, 1};
  MPI_Aint at[] = {offsetof(struct Record, letter), offsetof(struct Record, value),
                   offsetof(struct Record, number)};
  MPI_Datatype kinds[] = {MPI_CHAR, MPI_DOUBLE, MPI_SHORT}, packed, type;
  MPI_Type_create_struct(3, lengths_of, at, kinds, &packed);
  MPI_Type_create_resized(packed, 0, sizeof(struct Record), &type);
  MPI_Type_free(&packed);
  MPI_Type_commit(&type);
  return type;
}

static void records(int count) {
  struct Record* out = allocate((size_t)count * sizeof *out);
  struct Record* in = allocate((size_t)count * sizeof *in);
  MPI_Datatype type = record_type();
  for (int i = 0; i < count; ++i) {
    out[i] = (struct Record){(char)(i + rank), {i, i + rank, i * 0.5}, (short)(i - rank)};
  }
  MPI_Sendrecv(out, count, type, peer, 4, in, count, type, peer, 4, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  for (int i = 0; i < count; ++i) {
    CHECK(in[i].letter == (char)(i + peer) && in[i].value[0] == i && in[i].value[1] == i + peer);
    CHECK(in[i].value[2] == i * 0.5 && in[i].number == (short)(i - peer));
  }
  MPI_Type_free(&type);
  free(out);
  free(in);
}

/* Sends a column of a matrix and receives a row, so that only one side has gaps. */
static void column_to_row(int side) {
  int* matrix = allocate((size_t)side * (size_t)side * sizeof(int));
  int* row = allocate((size_t)side * sizeof(int));
  MPI_Datatype column, line;
  MPI_Type_vector(side, 1, side, MPI_INT, &column);
  MPI_Type_commit(&column);
  MPI_Type_contiguous(side, MPI_INT, &line);
  MPI_Type_commit(&line);
  for (int i = 0; i < side * side; ++i) matrix[i] = i * 10 + rank;
  MPI_Sendrecv(matrix + 1, 1, column, peer, 5, row, 1, line, peer, 5, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  for (int i = 0; i < side; ++i) CHECK(row[i] == (i * side + 1) * 10 + peer);
  MPI_Type_free(&column);
  MPI_Type_free(&line);
  free(matrix);
  free(row);
}

/* Receives into a type with gaps, whose bytes must not change. */
static void gaps(int blocks) {
  unsigned char* in = allocate((size_t)blocks * 16);
  unsigned char* out = allocate((size_t)blocks * 16);
  MPI_Datatype holes;
  MPI_Type_vector(blocks, 11, 16, MPI_BYTE, &holes);
  MPI_Type_commit(&holes);
  memset(in, 0xaa, (size_t)blocks * 16);
  for (int i = 0; i < blocks * 16; ++i) out[i] = (unsigned char)(i * 7 + rank);
  MPI_Sendrecv(out, 1, holes, peer, 6, in, 1, holes, peer, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (int i = 0; i < blocks * 16; ++i) {
    CHECK(in[i] == (i % 16 < 11 ? (unsigned char)(i * 7 + peer) : 0xaa));
  }
  MPI_Type_free(&holes);
  free(in);
  free(out);
}

static void datatypes(void) {
  if (peer < 0) return;
  const int counts[] = {1, 3, 50, 1000, 40000};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) records(counts[i]);
  column_to_row(3);
  column_to_row(1500);
  gaps(1);
  gaps(200);
  gaps(60000);
}

/* ---- storms: thousands of operations at once, every rank to every rank */

static size_t storm_length(int from, int to, int i) {
  uint64_t state = (uint64_t)from << 40 | (uint64_t)to << 20 | (uint64_t)i;
  uint64_t pick = next_random(&state);
  return next_random(&state) % (pick % 8 == 0 ? kStormLargest : pick % 8 < 3 ? 4096 : 128);
}

static void shuffle(int* items, int count, uint64_t seed) {
  for (int i = 0; i < count; ++i) items[i] = i;
  for (int i = count - 1; i > 0; --i) {
    const int j = (int)(next_random(&seed) % (uint64_t)(i + 1)), keep = items[i];
    items[i] = items[j];
    items[j] = keep;
  }
}

static void storm(void) {
  /* One partner after the other at a distance, so that all pairs of ranks meet. */
  for (int distance = 1; distance < ranks; ++distance) {
    const int to = (rank + distance) % ranks, from = (rank - distance + ranks) % ranks;
    const int count = kStorm / (ranks - 1);
    MPI_Request* requests = allocate((size_t)count * 2 * sizeof *requests);
    char **in = allocate((size_t)count * sizeof *in), **out = allocate((size_t)count * sizeof *out);
    int* order = allocate((size_t)count * sizeof *order);
    shuffle(order, count, (uint64_t)rank * 31 + (uint64_t)distance);
    for (int k = 0; k < count; ++k) { /* receives in random order of tags, sends in order */
      const int i = order[k];
      in[i] = allocate(kStormLargest);
      MPI_Irecv(in[i], kStormLargest, MPI_CHAR, from, i, MPI_COMM_WORLD, &requests[count + i]);
      const size_t length = storm_length(rank, to, k);
      out[k] = allocate(length);
      fill(out[k], length, (uint64_t)rank << 32 | (uint64_t)k);
      MPI_Isend(out[k], (int)length, MPI_CHAR, to, k, MPI_COMM_WORLD, &requests[k]);
    }
    MPI_Waitall(count * 2, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; ++i) {
      check_filled(in[i], storm_length(from, rank, i), (uint64_t)from << 32 | (uint64_t)i);
      free(in[i]);
      free(out[i]);
    }
    free(requests);
    free(in);
    free(out);
    free(order);
  }
}

/* ---- wildcards */

static void wildcards(void) {
  enum { kEach = 200 };
  if (rank != 0) {
    for (int i = 0; i < kEach; ++i) {
      int message[2] = {rank, i};
      MPI_Send(message, 2, MPI_INT, 0, i % 7, MPI_COMM_WORLD);
    }
    return;
  }
  int* next = allocate((size_t)ranks * 7 * sizeof *next); /* per source and tag: order holds */
  for (int i = 0; i < ranks * 7; ++i) next[i] = i % 7;
  for (int i = 0; i < (ranks - 1) * kEach; ++i) {
    int message[2];
    MPI_Status status;
    MPI_Recv(message, 2, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    int* expected = &next[status.MPI_SOURCE * 7 + status.MPI_TAG];
    CHECK(message[0] == status.MPI_SOURCE && message[1] == *expected);
    *expected += 7;
  }
  free(next);
}

/* ---- probes */

static void receive_probed(int how, size_t length, int tag) {
  MPI_Status status;
  MPI_Message message = MPI_MESSAGE_NULL;
  int flag = 0, count = -1;
  char* in = allocate(length);

  if (how == 0) MPI_Probe(peer, tag, MPI_COMM_WORLD, &status);
  if (how == 1) MPI_Mprobe(peer, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
  while (how == 2 && !flag) MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &flag, &status);
  while (how == 3 && !flag) MPI_Improbe(peer, tag, MPI_COMM_WORLD, &flag, &message, &status);
  MPI_Get_count(&status, MPI_CHAR, &count);
  CHECK(count == (int)length && status.MPI_TAG == tag && status.MPI_SOURCE == peer);
  if (how % 2 == 0) {
    MPI_Recv(in, (int)length, MPI_CHAR, peer, tag, MPI_COMM_WORLD, &status);
  } else if (tag % 2) {
    MPI_Mrecv(in, (int)length, MPI_CHAR, &message, &status);
  } else {
    MPI_Request request;
    MPI_Imrecv(in, (int)length, MPI_CHAR, &message, &request);
    MPI_Wait(&request, &status);
  }
  MPI_Get_count(&status, MPI_CHAR, &count);
  CHECK(count == (int)length);
  check_filled(in, length, length + (size_t)peer);
  free(in);
}

static void probes(void) {
  const size_t sizes[] = {0, 1, 100, 5000, 20000, 1 << 20};
  int flag = 1;
  if (peer < 0) return;
  MPI_Iprobe(peer, 4000, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
  CHECK(!flag); /* no rank sends that tag */
  for (int i = 0; i < 24; ++i) {
    const size_t length = sizes[i % 6];
    char* out = allocate(length);
    MPI_Request request;
    fill(out, length, length + (size_t)rank);
    MPI_Isend(out, (int)length, MPI_CHAR, peer, 100 + i, MPI_COMM_WORLD, &request);
    receive_probed(i / 6, length, 100 + i);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    free(out);
  }
}

/* ---- cancel, modes, self, truncation */

static void cancel(void) {
  for (int i = 0; i < 500; ++i) {
    int value = 0, cancelled = 0;
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(&value, 1, MPI_INT, i % 2 ? MPI_ANY_SOURCE : rank, 5000 + i, MPI_COMM_WORLD,
              &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    CHECK(cancelled);
  }
}

static void send_in_mode(int mode, const char* out, int length) {
  MPI_Request request;
  switch (mode) {
    case 0:
      MPI_Ssend(out, length, MPI_CHAR, peer, 8, MPI_COMM_WORLD);
      break;
    case 1:
      MPI_Bsend(out, length, MPI_CHAR, peer, 8, MPI_COMM_WORLD);
      break;
    case 2:
      MPI_Rsend(out, length, MPI_CHAR, peer, 8, MPI_COMM_WORLD);
      break;
    default:
      MPI_Send_init(out, length, MPI_CHAR, peer, 8, MPI_COMM_WORLD, &request);
      MPI_Start(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      MPI_Request_free(&request);
  }
}

static void modes(void) {
  enum { kModeLargest = 300000 };
  char *out = allocate(kModeLargest), *in = allocate(kModeLargest);
  const int buffer_length = kModeLargest + MPI_BSEND_OVERHEAD;
  void* buffer = allocate((size_t)buffer_length);
  if (peer >= 0) {
    MPI_Buffer_attach(buffer, buffer_length);
    for (int i = 0; i < 20; ++i) {
      const int length = i < 8 ? 10 * i : i < 16 ? 9000 : kModeLargest;
      MPI_Request request;
      char ready = 0;
      fill(out, (size_t)length, (uint64_t)(i * 100 + rank));
      MPI_Irecv(in, kModeLargest, MPI_CHAR, peer, 8, MPI_COMM_WORLD, &request);
      MPI_Sendrecv(&ready, 1, MPI_CHAR, peer, 9, &ready, 1, MPI_CHAR, peer, 9, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE); /* a ready send needs its receive posted */
      send_in_mode(i % 4, out, length);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      check_filled(in, (size_t)length, (uint64_t)(i * 100 + peer));
    }
    int detached_length;
    void* detached;
    MPI_Buffer_detach(&detached, &detached_length);
  }
  free(buffer);
  free(out);
  free(in);
}

static void synchronous(void) {
  /* An Ssend must not complete before its receive is posted. */
  if (peer < 0) return;
  char byte = 0;
  MPI_Request request;
  int flag = 0;
  if (rank % 2 == 0) {
    MPI_Issend(&byte, 1, MPI_CHAR, peer, 10, MPI_COMM_WORLD, &request);
    for (int i = 0; i < 200; ++i) {
      MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
      CHECK(!flag);
    }
    MPI_Send(&byte, 1, MPI_CHAR, peer, 11, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  } else {
    MPI_Recv(&byte, 1, MPI_CHAR, peer, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Recv(&byte, 1, MPI_CHAR, peer, 10, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(1);
  }
}

static void to_self(void) {
  const size_t sizes[] = {0, 8, 5000, 100000, 4 << 20};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    char *out = allocate(sizes[i]), *in = allocate(sizes[i]);
    fill(out, sizes[i], (uint64_t)rank + i);
    MPI_Sendrecv(out, (int)sizes[i], MPI_CHAR, rank, 12, in, (int)sizes[i], MPI_CHAR, rank, 12,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    check_filled(in, sizes[i], (uint64_t)rank + i);
    free(out);
    free(in);
  }
}

static void truncation(void) {
  const int sent[] = {100, 6000, 200000}, room = 60;
  if (peer < 0) return;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  for (int i = 0; i < 6; ++i) { /* three lengths, receive posted late or early */
    const int length = sent[i / 2];
    char *out = allocate((size_t)length), *in = allocate((size_t)room + 8);
    MPI_Request send, receive;
    fill(out, (size_t)length, (uint64_t)(i + rank));
    memset(in, 0x55, (size_t)room + 8);
    if (i % 2) MPI_Irecv(in, room, MPI_CHAR, peer, 13, MPI_COMM_WORLD, &receive);
    MPI_Isend(out, length, MPI_CHAR, peer, 13, MPI_COMM_WORLD, &send);
    if (i % 2 == 0) MPI_Irecv(in, room, MPI_CHAR, peer, 13, MPI_COMM_WORLD, &receive);
    const int rc = MPI_Wait(&receive, MPI_STATUS_IGNORE);
    int class = MPI_SUCCESS;
    MPI_Error_class(rc, &class);
    CHECK(class == MPI_ERR_TRUNCATE);
    for (int k = 0; k < 8; ++k) CHECK(in[room + k] == 0x55);
    CHECK(MPI_Wait(&send, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    free(out);
    free(in);
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

const struct Phase point_to_point_phases[] = {{"lengths", lengths}, {"datatypes", datatypes},
                                              {"storm", storm},     {"wildcards", wildcards},
                                              {"probes", probes},   {"cancel", cancel},
                                              {"modes", modes},     {"synchronous", synchronous},
                                              {"self", to_self},    {"truncation", truncation},
                                              {NULL, NULL}};
