/* mpi_check [PHASE...]: an MPI job of two or more ranks that checks every result. Prints a line for
 * each phase. A wrong result ends the job. "one_sided" stands for all phases of one-sided
 * communication, which run only if they are named. */
#include "mpi_check.h"

int rank, ranks, peer, threads_allowed;
unsigned long checks;

uint64_t next_random(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint32_t crc32_of(const void* data, size_t length) {
  static uint32_t table[8][256];
  const unsigned char* at = data;
  uint32_t crc = ~0u;

  if (table[0][1] == 0) {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
      table[0][i] = c;
    }
    for (int k = 1; k < 8; ++k) {
      for (int i = 0; i < 256; ++i) {
        table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 255];
      }
    }
  }
  for (; length >= 8; length -= 8, at += 8) {
    uint32_t low, high;
    memcpy(&low, at, 4);
    memcpy(&high, at + 4, 4);
    low ^= crc;
    crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
          table[4][low >> 24] ^ table[3][high & 255] ^ table[2][high >> 8 & 255] ^
          table[1][high >> 16 & 255] ^ table[0][high >> 24];
  }
  while (length-- > 0) crc = crc >> 8 ^ table[0][(crc ^ *at++) & 255];
  return ~crc;
}

void fill(void* data, size_t length, uint64_t seed) {
  unsigned char* at = data;
  for (; length >= 8; length -= 8, at += 8) {
    uint64_t word = next_random(&seed);
    memcpy(at, &word, 8);
  }
  uint64_t word = next_random(&seed);
  memcpy(at, &word, length);
}

void check_filled(const void* data, size_t length, uint64_t seed) {
  const unsigned char* at = data;
  int same = 1;
  for (; length >= 8; length -= 8, at += 8) {
    uint64_t word = next_random(&seed);
    same &= memcmp(at, &word, 8) == 0;
  }
  uint64_t word = next_random(&seed);
  CHECK(same && memcmp(at, &word, length) == 0);
}

void* allocate(size_t length) {
  void* memory = calloc(1, length ? length : 1);
  CHECK(memory != NULL);
  return memory;
}

static int run_phases(const struct Phase* phases, int count, char** wanted) {
  int run = 0;
  for (; phases->run; ++phases) {
    int chosen = count == 0;
    for (int i = 0; i < count; ++i) chosen |= strcmp(wanted[i], phases->name) == 0;
    if (!chosen) continue;
    double start = MPI_Wtime();
    phases->run();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("ok %s (%.2f s)\n", phases->name, MPI_Wtime() - start);
    fflush(stdout);
    ++run;
  }
  return run;
}

static int run_one_sided(int count, char** wanted) {
  const int all = count == 1 && strcmp(wanted[0], "one_sided") == 0;
  if (count == 0) return 0;
  return run_phases(one_sided_phases, all ? 0 : count, wanted) +
         run_phases(atomic_phases, all ? 0 : count, wanted);
}

int main(int argc, char** argv) {
  int granted = 0, run = 0;
  unsigned long total = 0;

  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
  threads_allowed = granted == MPI_THREAD_MULTIPLE;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  peer = (rank ^ 1) < ranks ? rank ^ 1 : -1;
  CHECK(ranks >= 2);

  run += run_phases(point_to_point_phases, argc - 1, argv + 1);
  run += run_phases(collective_phases, argc - 1, argv + 1);
  run += run_phases(thread_phases, argc - 1, argv + 1);
  run += run_one_sided(argc - 1, argv + 1);
  MPI_Reduce(&checks, &total, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0 && run > 0) printf("mpi_check: %lu checks on %d ranks passed\n", total, ranks);
  MPI_Finalize();
  return run > 0 ? 0 : 1;
}
