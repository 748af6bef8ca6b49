// What surrounds the products: RMSNorm, and the turn of queries and keys on their way into the cache. All in float32
// between one load and one store.

#include <algorithm>

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

template <typename T>
void rms_norm(const T* x, const T* weight, T* out, int64_t rows, int64_t width, float eps, int threads) {
#pragma omp parallel for num_threads(team(rows * width, threads))
    for (int64_t row = 0; row < rows; ++row) {
        const T* from = x + row * width;
        const Vec scale = inverse_rms(from, width, eps);
        for (int64_t i = 0; i < width; i += LANES) {
            const Mask mask = lanes(i, width);
            store(out + row * width + i, load(from + i, mask) * scale * load(weight + i, mask), mask);
        }
    }
}

}  // namespace

// Where the heads of a step are, and where they go (kernels/cpu/pointwise.py has the same fields).
struct HeadsOfStep {
    const void *cos, *sin;  // [tokens][dim]; the sines of the first half are negative
    const int64_t* slots;   // [tokens]
    int64_t tokens, query_heads, kv_heads, dim;
    float eps;  // of the norms of query and key, where a model has them
};

namespace {

// to = x, normed if there is a norm, turned: x * cos + (x with its halves exchanged) * sin. `to` may be `x`.
template <typename T>
void turn(const T* x, T* to, const T* norm, const T* cos, const T* sin, int64_t dim, float eps) {
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
        store(to + i, fma(high, load(sin + i, mask), turned_low), mask);
        store(to + half + i, fma(low, load(sin + half + i, mask), turned_high), mask);
    }
}

// heads [tokens][query + key + value heads][dim]: queries turn in place, keys on their way to the cache.
template <typename T>
void store_heads(const HeadsOfStep& step, T* heads, const T* query_norm, const T* key_norm, T* keys, T* values,
                 int threads) {
    const int64_t dim = step.dim, kv = step.kv_heads * dim, width = step.query_heads * dim + 2 * kv;
#pragma omp parallel for num_threads(team(step.tokens * width, threads))
    for (int64_t token = 0; token < step.tokens; ++token) {
        T* row = heads + token * width;
        const T* cos = static_cast<const T*>(step.cos) + token * dim;
        const T* sin = static_cast<const T*>(step.sin) + token * dim;
        for (int64_t head = 0; head < step.query_heads; ++head, row += dim)
            turn(row, row, query_norm, cos, sin, dim, step.eps);
        for (int64_t head = 0; head < step.kv_heads; ++head, row += dim)
            turn(row, keys + step.slots[token] * kv + head * dim, key_norm, cos, sin, dim, step.eps);
        std::copy(row, row + kv, values + step.slots[token] * kv);
    }
}

}  // namespace
}  // namespace octavo

#define OCTAVO_POINTWISE(TYPE, SUFFIX)                                                                                \
    extern "C" void octavo_rms_norm_##SUFFIX(const TYPE* x, const TYPE* weight, TYPE* out, int64_t rows,              \
                                             int64_t width, float eps, int threads) {                                 \
        octavo::rms_norm(x, weight, out, rows, width, eps, threads);                                                  \
    }                                                                                                                 \
    extern "C" void octavo_store_heads_##SUFFIX(const octavo::HeadsOfStep* step, TYPE* heads, const TYPE* query_norm, \
                                                const TYPE* key_norm, TYPE* keys, TYPE* values, int threads) {        \
        octavo::store_heads(*step, heads, query_norm, key_norm, keys, values, threads);                               \
    }

OCTAVO_POINTWISE(float, float32)
OCTAVO_POINTWISE(octavo::Bf16, bfloat16)
