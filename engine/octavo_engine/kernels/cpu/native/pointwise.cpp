// What surrounds the products: RMSNorm, and the turn of queries and keys on their way into the cache. All in float32
// between one load and one store.

#include <algorithm>
#include <cstring>

#include "cache_block.h"
#include "kernels.h"
#include "vectors.h"

namespace octavo {
namespace {

constexpr int64_t WORTH_A_THREAD = 16384;  // numbers; below that, waking the others takes longer than the work

int team(int64_t numbers, int threads) {
    return static_cast<int>(std::clamp<int64_t>(numbers / WORTH_A_THREAD, 1, threads));
}

// 1 / sqrt(mean of squares + eps). Summed in float64: an error of this factor is an error of every number of the row.
template <typename T>
Vec inverse_rms(const T* x, int64_t width, float eps) {
    Doubles total{};
    for (int64_t i = 0; i < width; i += LANES) {
        const Doubles part = wide(load(x + i, lanes(i, width)));
        total = fma(part, part, total);
    }
    const double mean = sum(total) / static_cast<double>(width);
    return broadcast(static_cast<float>(1.0 / std::sqrt(mean + eps)));
}

// x, normed if there is a norm, turned: x * cos + (x with its halves exchanged) * sin.
template <typename T>
void turn(T* x, const T* norm, const T* cos, const T* sin, int64_t dim, float eps) {
    const int64_t half = dim / 2;
    const Vec scale = norm ? inverse_rms(x, dim, eps) : broadcast(1.0f);
    for (int64_t i = 0; i < half; i += LANES) {
        const Mask mask = lanes(i, half);
        Vec low = load(x + i, mask), high = load(x + half + i, mask);
        if (norm) {
            low = low * scale * load(norm + i, mask);
            high = high * scale * load(norm + half + i, mask);
        }
        const Vec turned_low = low * load(cos + i, mask), turned_high = high * load(cos + half + i, mask);
        store(x + i, fma(high, load(sin + i, mask), turned_low), mask);
        store(x + half + i, fma(low, load(sin + half + i, mask), turned_high), mask);
    }
}

// One token's numbers of a head become its words in a block.
template <typename T>
void put_key(const CacheBlock<T>& form, int64_t token, const T* key, T* block) {
    for (int64_t d = 0; d < form.dim; d += STEP<T>)
        std::memcpy(block + form.key(token, d), key + d, sizeof(uint32_t));
}

template <typename T>
void put_value(const CacheBlock<T>& form, int64_t token, const T* value, T* block) {
    T* to = block + form.value(token, 0);
    for (int64_t d = 0; d < form.dim; ++d) to[d * STEP<T>] = value[d];
}

}  // namespace

template <typename T>
void rms_norm(Team team, const T* x, const T* weight, T* out, int64_t rows, int64_t width, float eps) {
    for (int64_t row = team.begin(rows); row < team.end(rows); ++row) {
        const T* from = x + row * width;
        const Vec scale = inverse_rms(from, width, eps);
        for (int64_t i = 0; i < width; i += LANES) {
            const Mask mask = lanes(i, width);
            store(out + row * width + i, load(from + i, mask) * scale * load(weight + i, mask), mask);
        }
    }
}

template <typename T>
void store_heads(Team team, const HeadsOfStep& step, T* heads, const T* query_norm, const T* key_norm, T* keys,
                 T* values) {
    const int64_t dim = step.dim, width = (step.query_heads + 2 * step.kv_heads) * dim;
    const CacheBlock<T> form{step.block_size, dim};
    for (int64_t token = team.begin(step.tokens); token < team.end(step.tokens); ++token) {
        const int64_t place = step.slots[token] % form.size;
        int64_t block = step.slots[token] / form.size * step.kv_heads * form.numbers();
        const T* cos = static_cast<const T*>(step.cos) + token * dim;
        const T* sin = static_cast<const T*>(step.sin) + token * dim;
        T *query = heads + token * width, *key = query + step.query_heads * dim, *value = key + step.kv_heads * dim;
        for (int64_t head = 0; head < step.query_heads; ++head, query += dim)
            turn(query, query_norm, cos, sin, dim, step.eps);
        for (int64_t head = 0; head < step.kv_heads; ++head, key += dim, value += dim, block += form.numbers()) {
            turn(key, key_norm, cos, sin, dim, step.eps);
            put_key(form, place, key, keys + block);
            put_value(form, place, value, values + block);
        }
    }
}

template void rms_norm(Team, const float*, const float*, float*, int64_t, int64_t, float);
template void rms_norm(Team, const Bf16*, const Bf16*, Bf16*, int64_t, int64_t, float);
template void store_heads(Team, const HeadsOfStep&, float*, const float*, const float*, float*, float*);
template void store_heads(Team, const HeadsOfStep&, Bf16*, const Bf16*, const Bf16*, Bf16*, Bf16*);

}  // namespace octavo

#define OCTAVO_POINTWISE(TYPE, SUFFIX)                                                                                \
    extern "C" void octavo_rms_norm_##SUFFIX(const TYPE* x, const TYPE* weight, TYPE* out, int64_t rows,              \
                                             int64_t width, float eps, int threads) {                                 \
        octavo::Meeting meeting;                                                                                      \
        _Pragma("omp parallel num_threads(octavo::team(rows * width, threads))")                                      \
        octavo::rms_norm(octavo::Team::here(meeting), x, weight, out, rows, width, eps);                              \
    }                                                                                                                 \
    extern "C" void octavo_store_heads_##SUFFIX(const octavo::HeadsOfStep* step, TYPE* heads, const TYPE* query_norm, \
                                                const TYPE* key_norm, TYPE* keys, TYPE* values, int threads) {        \
        const int64_t numbers = step->tokens * (step->query_heads + 2 * step->kv_heads) * step->dim;                  \
        octavo::Meeting meeting;                                                                                      \
        _Pragma("omp parallel num_threads(octavo::team(numbers, threads))")                                           \
        octavo::store_heads(octavo::Team::here(meeting), *step, heads, query_norm, key_norm, keys, values);           \
    }

OCTAVO_POINTWISE(float, float32)
OCTAVO_POINTWISE(octavo::Bf16, bfloat16)
