// How one key/value head of a block of the cache lies in memory (kernels/cpu/cache_form.py says the same).
//
// A word is what a product reads at once: two numbers of bfloat16, or one of float32. Keys lie word by word, each
// beside the same of the block's other tokens, so that a vector holds one word of LANES tokens. Values lie in words of
// tokens, each with all its numbers side by side. So products read both as they lie. A token is written once, and read
// by every token after it: turning tiles while they are read was half of a decode's attention.
#pragma once

#include "vectors.h"

namespace octavo {

template <typename T>
struct CacheBlock {
    int64_t size, dim;  // tokens and numbers of a head, both in whole words

    int64_t numbers() const { return size * dim; }
    int64_t key(int64_t token, int64_t d) const { return (d / STEP<T> * size + token) * STEP<T> + d % STEP<T>; }
    int64_t value(int64_t token, int64_t d) const { return (token / STEP<T> * dim + d) * STEP<T> + token % STEP<T>; }
};

}  // namespace octavo
