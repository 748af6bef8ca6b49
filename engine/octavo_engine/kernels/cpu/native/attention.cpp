// Attention of single queries over a paged cache, read where it lies.
//
// A work item is a piece of one sequence's context for one key/value head: all query heads that share it use each key
// and value while it is at hand. Items keep a running softmax (https://arxiv.org/abs/2205.14135) in float32; pieces of
// a sequence are merged at the end by their sums.

#include <algorithm>
#include <limits>
#include <vector>

#include "vectors.h"

namespace octavo {

// The decodes of a step (kernels/cpu/attention.py has the same fields).
struct Decodes {
    const int32_t* tables;   // [sequences][table_stride], blocks of each sequence
    const int32_t* lengths;  // [sequences], tokens of each, this step's included
    int64_t table_stride, sequences, block_size, query_heads, kv_heads, dim;
    int64_t window;  // tokens that a query sees at most
    float scale;     // factor on query x key
};

namespace {

constexpr int64_t TILE = LANES;        // tokens of a tile: their scores fill one vector
// Query heads computed together: four vectors of each are sums in registers, where there are so many.
constexpr int MAX_HEADS = TILE_ROWS >= 8 ? 4 : 2;
constexpr int64_t MIN_PIECE = 4 * TILE;
constexpr int64_t ITEMS_A_THREAD = 4;  // so that uneven sequences even out
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// Where the keys and values of a tile lie. Past the end, the last valid token again: nobody else's memory is read.
template <typename T>
struct Rows {
    const T *keys[TILE], *values[TILE];
    int64_t count;

    Rows(const Decodes& step, const T* key_cache, const T* value_cache, int64_t sequence, int64_t kv_head,
         int64_t first, int64_t end)
        : count(std::min(TILE, end - first)) {
        const int32_t* table = step.tables + sequence * step.table_stride;
        for (int64_t token = 0; token < TILE; ++token) {
            const int64_t position = first + std::min(token, count - 1);
            const int64_t slot = table[position / step.block_size] * step.block_size + position % step.block_size;
            const int64_t place = (slot * step.kv_heads + kv_head) * step.dim;
            keys[token] = key_cache + place;
            values[token] = value_cache + place;
        }
    }
};

// Running softmax of a few queries.
template <typename T>
struct Running {
    const T* query;     // [heads][dim]
    float* output;      // [heads][width], sums of weighted values
    int64_t dim, width;  // the width is dim, rounded up to whole vectors
    float scale;
    float largest[MAX_HEADS];
    Vec total[MAX_HEADS];
};

// scores[head] = query of the head . the tile's keys * scale
template <int HEADS, typename T>
void score(const Running<T>& state, const Rows<T>& rows, Vec (&scores)[HEADS]) {
    Vec products[HEADS][TILE];
    for (int token = 0; token < TILE; token += 4) {
        Vec sum[HEADS][4];
#pragma GCC unroll 4
        for (int head = 0; head < HEADS; ++head)
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) sum[head][i] = zero();
        for (int64_t d = 0; d < state.dim; d += Dot<T>::WIDTH) {
            const int64_t left = state.dim - d;
            typename Dot<T>::Operand key[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) key[i] = Dot<T>::load(rows.keys[token + i] + d, left);
#pragma GCC unroll 4
            for (int head = 0; head < HEADS; ++head) {
                const auto query = Dot<T>::load(state.query + head * state.dim + d, left);
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) sum[head][i] = Dot<T>::add(sum[head][i], query, key[i]);
            }
        }
#pragma GCC unroll 4
        for (int head = 0; head < HEADS; ++head)
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) products[head][token + i] = sum[head][i];
    }
    for (int head = 0; head < HEADS; ++head)
        scores[head] = sums_of(products[head]) * broadcast(state.scale);
}

// Scores become weights relative to the largest score so far; `shrink` is what older sums lose by that.
template <typename T>
void soften(Running<T>& state, int head, Vec scores, Mask valid, float* weights, float& shrink) {
    const float before = state.largest[head];
    const float largest = std::max(before, octavo::largest(select(valid, scores, broadcast(NOTHING))));
    const Vec parts = select(valid, exponential(scores - broadcast(largest)), zero());
    shrink = largest == before ? 1.0f : std::exp(before - largest);
    state.largest[head] = largest;
    state.total[head] = fma(state.total[head], broadcast(shrink), parts);
    store(weights, parts);
}

// output = output * shrink + weights . values, for VECTORS vectors from `d` on
template <int HEADS, int VECTORS, typename T>
void gather(Running<T>& state, const Rows<T>& rows, int64_t d, const float (&weights)[HEADS][TILE],
            const float (&shrink)[HEADS]) {
    const Mask last = lanes(d + (VECTORS - 1) * LANES, state.dim);
    Vec sum[HEADS][VECTORS];
#pragma GCC unroll 4
    for (int head = 0; head < HEADS; ++head)
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; ++i)
            sum[head][i] = load(state.output + head * state.width + d + i * LANES) * broadcast(shrink[head]);
    for (int64_t token = 0; token < rows.count; ++token) {
        Vec value[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; ++i)
            value[i] = load(rows.values[token] + d + i * LANES, i == VECTORS - 1 ? last : ALL);
#pragma GCC unroll 4
        for (int head = 0; head < HEADS; ++head) {
            const Vec weight = broadcast(weights[head][token]);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; ++i) sum[head][i] = fma(weight, value[i], sum[head][i]);
        }
    }
#pragma GCC unroll 4
    for (int head = 0; head < HEADS; ++head)
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; ++i) store(state.output + head * state.width + d + i * LANES, sum[head][i]);
}

template <int HEADS, typename T>
void add_tile(Running<T>& state, const Rows<T>& rows) {
    Vec scores[HEADS];
    float weights[HEADS][TILE], shrink[HEADS];
    score<HEADS>(state, rows, scores);
    for (int head = 0; head < HEADS; ++head)
        soften(state, head, scores[head], lanes(0, rows.count), weights[head], shrink[head]);
    int64_t d = 0;
    for (; d + 4 * LANES <= state.width; d += 4 * LANES) gather<HEADS, 4>(state, rows, d, weights, shrink);
    switch ((state.width - d) / LANES) {
        case 3: return gather<HEADS, 3>(state, rows, d, weights, shrink);
        case 2: return gather<HEADS, 2>(state, rows, d, weights, shrink);
        case 1: return gather<HEADS, 1>(state, rows, d, weights, shrink);
    }
}

// How the step is cut, and the memory for what the pieces give.
struct Pieces {
    int64_t tokens = 0, most = 0;  // of a piece; pieces of the longest sequence
    int64_t width;                 // of an output, in whole vectors
    std::vector<float> outputs;    // [sequences][query heads][most][width]
    std::vector<float> largest, totals;  // [sequences][query heads][most]

    // Long enough to be worth it, short enough that every thread has several. Memory only grows: it is used each layer.
    void cut(const Decodes& step, int threads) {
        int64_t all = 0, longest = 1;
        for (int64_t i = 0; i < step.sequences; ++i) {
            const int64_t seen = std::min<int64_t>(step.lengths[i], step.window);
            all += seen, longest = std::max(longest, seen);
        }
        const int64_t share = all * step.kv_heads / (threads * ITEMS_A_THREAD);
        tokens = std::max(MIN_PIECE, (share + TILE - 1) / TILE * TILE);
        most = (longest + tokens - 1) / tokens;
        width = (step.dim + LANES - 1) / LANES * LANES;
        const std::size_t needed = step.sequences * step.query_heads * most;
        if (totals.size() < needed) largest.resize(needed), totals.resize(needed);
        if (outputs.size() < needed * width) outputs.resize(needed * width);
    }
};

// One piece of one sequence for HEADS query heads from `head` on.
template <int HEADS, typename T>
void attend_piece(const Decodes& step, Pieces& pieces, const T* query, const T* key_cache, const T* value_cache,
                  int64_t sequence, int64_t kv_head, int64_t head, int64_t piece) {
    const int64_t end_of_all = step.lengths[sequence], first = std::max<int64_t>(0, end_of_all - step.window);
    const int64_t begin = first + piece * pieces.tokens, end = std::min(begin + pieces.tokens, end_of_all);
    const int64_t place = (sequence * step.query_heads + head) * pieces.most + piece, width = pieces.width;
    std::vector<float> output(HEADS * width, 0.0f);
    Running<T> state{query, output.data(), step.dim, width, step.scale, {}, {}};
    for (int i = 0; i < HEADS; ++i) {
        state.largest[i] = NOTHING;
        state.total[i] = zero();
    }
    for (int64_t position = begin; position < end; position += TILE)
        add_tile<HEADS>(state, Rows<T>(step, key_cache, value_cache, sequence, kv_head, position, end));
    for (int i = 0; i < HEADS; ++i) {
        const int64_t at = place + i * pieces.most;
        pieces.largest[at] = state.largest[i];
        pieces.totals[at] = sum(state.total[i]);
        std::copy_n(state.output + i * width, width, pieces.outputs.data() + at * width);
    }
}

// All query heads that share a key/value head, a few at a time.
template <typename T>
void attend_group(const Decodes& step, Pieces& pieces, const T* query, int64_t stride, const T* key_cache,
                  const T* value_cache, int64_t sequence, int64_t kv_head, int64_t piece) {
    const int64_t group = step.query_heads / step.kv_heads, begin = kv_head * group;
    for (int64_t head = begin; head < begin + group; head += MAX_HEADS) {
        const T* from = query + sequence * stride + head * step.dim;
        const auto run = [&](auto attend) {
            attend(step, pieces, from, key_cache, value_cache, sequence, kv_head, head, piece);
        };
        switch (std::min<int64_t>(MAX_HEADS, begin + group - head)) {
            case 4: run(attend_piece<4, T>); break;
            case 3: run(attend_piece<3, T>); break;
            case 2: run(attend_piece<2, T>); break;
            case 1: run(attend_piece<1, T>); break;
        }
    }
}

// The pieces of one (sequence, head), weighed by their sums.
template <typename T>
void merge(const Decodes& step, const Pieces& pieces, int64_t row, T* out) {
    const float *largest = pieces.largest.data() + row * pieces.most, *totals = pieces.totals.data() + row * pieces.most;
    const float* outputs = pieces.outputs.data() + row * pieces.most * pieces.width;
    const float top = *std::max_element(largest, largest + pieces.most);
    float total = 0;
    for (int64_t i = 0; i < pieces.most; ++i) total += totals[i] * std::exp(largest[i] - top);
    for (int64_t d = 0; d < step.dim; d += LANES) {
        Vec sum = zero();
        for (int64_t i = 0; i < pieces.most; ++i)
            sum = fma(load(outputs + i * pieces.width + d), broadcast(std::exp(largest[i] - top) / total), sum);
        store(out + d, sum, lanes(d, step.dim));
    }
}

template <typename T>
void decode(const Decodes& step, const T* query, int64_t stride, const T* key_cache, const T* value_cache, T* out,
            int threads) {
    static thread_local Pieces pieces_of_thread;  // the memory of the step's thread, kept from layer to layer
    Pieces& pieces = pieces_of_thread;
    pieces.cut(step, threads);
    const int64_t items = step.sequences * step.kv_heads * pieces.most, rows = step.sequences * step.query_heads;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t row = item / pieces.most;
            attend_group(step, pieces, query, stride, key_cache, value_cache, row / step.kv_heads, row % step.kv_heads,
                         item % pieces.most);
        }
#pragma omp for
        for (int64_t row = 0; row < rows; ++row) merge(step, pieces, row, out + row * step.dim);
    }
}

}  // namespace
}  // namespace octavo

// query [sequences][query heads][dim], `stride` numbers from sequence to sequence; out [sequences][query heads][dim].
#define OCTAVO_DECODE(TYPE, SUFFIX)                                                                                \
    extern "C" void octavo_decode_##SUFFIX(const octavo::Decodes* step, const TYPE* query, int64_t stride,         \
                                           const TYPE* keys, const TYPE* values, TYPE* out, int threads) {         \
        octavo::decode(*step, query, stride, keys, values, out, threads);                                          \
    }

OCTAVO_DECODE(float, float32)
OCTAVO_DECODE(octavo::Bf16, bfloat16)
