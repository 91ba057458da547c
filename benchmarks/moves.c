// What a chain of kernels must move, and nothing else: each link loads every block of its inputs
// once and stores every block of its outputs once, in the place of the inputs. No kernel with
// ordinary loads and stores is faster, so these times are the limit of the machine.
#include <stddef.h>
#include <stdint.h>

typedef uint32_t Block __attribute__((vector_size(64), aligned(64)));

#define LINKS(body)                          \
  for (int link = 0; link < links; ++link) { \
    for (size_t i = 0; i < blocks; ++i) {    \
      body;                                  \
    }                                        \
    __asm__ volatile("" ::: "memory");       \
  }

// y = f(y)
void moves_norm(Block* y, Block* s, size_t blocks, int links) {
  (void)s;
  LINKS(y[i] += 1)
}

// y, s = f(y + s)
void moves_add(Block* y, Block* s, size_t blocks, int links) {
  LINKS(y[i] += s[i]; s[i] = y[i])
}

// y = f(y + s)
void moves_post(Block* y, Block* s, size_t blocks, int links) { LINKS(y[i] += s[i]) }
