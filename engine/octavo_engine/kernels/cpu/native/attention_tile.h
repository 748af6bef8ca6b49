// Some queries of a sequence against a piece of its context, for some key/value heads and all query heads that share
// them.
//
// Keys come in tiles. A tile is turned and paired once, into words in the order in which products read them, and meets
// all rows (queries x heads) while it is at hand: products in the type of the cache, sums and running softmax
// (https://arxiv.org/abs/2205.14135) in float32. Single queries and chunks of prompts take the same way: so a query's
// sums have one order, whoever comes with it.
#pragma once

#include <limits>

#include "attention.h"
#include "vectors.h"

namespace octavo {
namespace {

// Numbers of the cache's type in a word.
template <typename T>
constexpr int64_t STEP = sizeof(uint32_t) / sizeof(T);

constexpr int64_t up_to(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// Less than any score, but finite: a difference of two of them is a number.
constexpr float NOTHING = -std::numeric_limits<float>::max();
constexpr float HIDDEN = -std::numeric_limits<float>::infinity();

constexpr int64_t PASS = 2 * LANES;  // columns of a register tile of TILE_ROWS rows

// Width of a row of outputs.
inline int64_t output_width(int64_t dim) { return up_to(dim, PASS); }

// A thread's memory, kept from item to item.
template <typename T>
struct Workspace {
    Buffer<T> query_memory, key_memory, value_memory;
    SoftmaxMemory total_memory, piece_memory;
    T *queries, *keys, *values;  // [rows][depth], [depth / STEP][KEYS][STEP], [KEYS / STEP][width][STEP]
    Softmaxes total, piece;
    int64_t dim, depth, width, rows;  // depth: dim in whole words

    void fit(int64_t dim_, int64_t rows_) {
        dim = dim_, rows = rows_, depth = up_to(dim, STEP<T>), width = output_width(dim);
        queries = query_memory.fit(rows * depth);
        keys = key_memory.fit(up_to(depth, Dot<T>::WIDTH) * KEYS);
        values = value_memory.fit(width * KEYS);
        total = total_memory.fit(rows, width), piece = piece_memory.fit(rows, width);
    }
};

// ---- a tile of keys and values -------------------------------------------------------------------------------------

// Where the rows of some tokens lie, of one key/value head and those after it. Past the last token there is nothing:
// foreign memory is not read.
template <typename T>
struct Rows {
    const T *keys[KEYS], *values[KEYS];
    int64_t count;

    Rows(const AttentionStep& step, const T* key_cache, const T* value_cache, int64_t sequence, int64_t kv_head,
         int64_t first)
        : count(std::min<int64_t>(KEYS, step.lengths[sequence] - first)) {
        const int64_t width = step.kv_heads * step.dim;
        const int32_t* block = step.tables + sequence * step.table_stride + first / step.block_size;
        int64_t offset = first % step.block_size;
        for (int64_t token = 0; token < count; ++token) {
            const int64_t place = (*block * step.block_size + offset) * width + kv_head * step.dim;
            keys[token] = key_cache + place, values[token] = value_cache + place;
            if (++offset == step.block_size) offset = 0, ++block;
        }
    }
};

// The rows that come next, asked for a few at a time between the work on others: processors do not foresee blocks that
// lie anywhere, and a core waits for few lines of memory at once.
template <typename T>
struct Ahead {
    Rows<T> rows;
    int64_t numbers, share;  // of each row; rows at a time
    int64_t done = 0;

    // Inline, or the compiler drops the call: it has no effect that it knows of.
    __attribute__((always_inline)) void fetch_some() {
        constexpr int64_t LINE = 64 / sizeof(T);
        const int64_t end = std::min(done + share, rows.count);
        for (; done < end; ++done)
            for (int64_t d = 0; d < numbers; d += LINE) {
                __builtin_prefetch(rows.keys[done] + d, 0, 2);  // to the second level: the first is smaller than a tile
                __builtin_prefetch(rows.values[done] + d, 0, 2);
            }
    }
};

// keys[word][token] = the word of the token's key, which begins at `from` in its row
template <typename T>
void turn_keys(const Rows<T>& rows, int64_t from, int64_t dim, T* keys) {
    const int64_t tokens = up_to(rows.count, LANES);
    for (int64_t d = 0; d < dim; d += Dot<T>::WIDTH)
        for (int64_t token = 0; token < tokens; token += LANES) {
            Words square[LANES];
            const auto bytes = static_cast<int64_t>((dim - d) * sizeof(T));
            for (int64_t i = 0; i < LANES; ++i)
                square[i] = token + i < rows.count ? words(rows.keys[token + i] + from + d, bytes) : Words{};
            transpose(square);
            T* to = keys + (d / STEP<T> * KEYS + token) * STEP<T>;
            for (int64_t i = 0; i < LANES; ++i, to += KEYS * STEP<T>) store(to, square[i]);
        }
}

// values[pair of tokens][column] = the pair of their numbers
inline void pair_values(const Rows<Bf16>& rows, int64_t from, int64_t dim, int64_t width, Bf16* values) {
    static const Bf16 nothing[LANES] = {};
    for (int64_t token = 0; token < rows.count; token += 2, values += 2 * width)
        for (int64_t d = 0; d < width; d += LANES) {
            const Bf16* second = token + 1 < rows.count ? rows.values[token + 1] + from + d : nothing;
            store(values + 2 * d, pairs(rows.values[token] + from + d, second, lanes(d, dim)));
        }
}

inline void pair_values(const Rows<float>& rows, int64_t from, int64_t dim, int64_t width, float* values) {
    for (int64_t token = 0; token < rows.count; ++token, values += width)
        for (int64_t d = 0; d < width; d += LANES)
            store(values + d, load(rows.values[token] + from + d, lanes(d, dim)));
}

// ---- products ------------------------------------------------------------------------------------------------------

// c = a . b, or c = c * shrink + a . b, for ROWS rows of a and VECTORS vectors of columns of b, `steps` words deep.
// Rows of a lie `depth` numbers apart, words of b `columns`, rows of c `width`.
template <typename T, int ROWS, int VECTORS, bool ADD>
void product_in_float(const T* a, int64_t depth, const T* b, int64_t columns, int64_t steps, float* c, int64_t width,
                      const float* shrink) {
    Vec sum[ROWS][VECTORS];
#pragma GCC unroll 12  // all loops over rows and vectors: only then do the sums stay in registers
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; ++i)
            sum[row][i] = ADD ? load(c + row * width + i * LANES) * broadcast(shrink[row]) : zero();
    for (int64_t step = 0; step < steps; ++step, a += STEP<T>, b += columns * STEP<T>) {
        typename Dot<T>::Operand column[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; ++i) column[i] = Dot<T>::load(b + i * Dot<T>::WIDTH);
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row) {
            const auto word = Dot<T>::broadcast(a + row * depth);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; ++i) sum[row][i] = Dot<T>::add(sum[row][i], column[i], word);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; ++i) store(c + row * width + i * LANES, sum[row][i]);
}

// Numbers of bfloat16 are short enough for sums in float32.
template <int ROWS, int VECTORS, bool ADD>
void product(const Bf16* a, int64_t depth, const Bf16* b, int64_t columns, int64_t steps, float* c,
             const float* shrink) {
    product_in_float<Bf16, ROWS, VECTORS, ADD>(a, depth, b, columns, steps, c, columns, shrink);
}

// Products of float32 are summed in float64 every FOLD words, as in linear.cpp: an error of a score is one of all that
// its key weighs.
template <int ROWS, int VECTORS, bool ADD>
void product(const float* a, int64_t depth, const float* b, int64_t columns, int64_t steps, float* c,
             const float* shrink) {
    constexpr int64_t FOLD = 16, WIDTH = VECTORS * LANES;
    Doubles total[ROWS][VECTORS] = {};
    alignas(64) float part[ROWS * WIDTH];
    for (int64_t step = 0; step < steps; step += FOLD) {
        const int64_t count = std::min(FOLD, steps - step);
        product_in_float<float, ROWS, VECTORS, false>(a + step, depth, b + step * columns, columns, count, part, WIDTH,
                                                      nullptr);
        for (int row = 0; row < ROWS; ++row)
            for (int i = 0; i < VECTORS; ++i)
                total[row][i] = total[row][i] + wide(load(part + row * WIDTH + i * LANES));
    }
    for (int row = 0; row < ROWS; ++row)
        for (int i = 0; i < VECTORS; ++i) {
            float* to = c + row * columns + i * LANES;
            if (ADD) total[row][i] = total[row][i] + wide(load(to) * broadcast(shrink[row]));
            store(to, narrow(total[row][i]));
        }
}

// All columns, a multiple of PASS; few rows take twice as many at once, to keep as many sums going.
template <typename T, int ROWS, bool ADD>
void all_columns(const T* a, int64_t depth, const T* b, int64_t columns, int64_t steps, float* c, const float* shrink) {
    constexpr int64_t WIDE = 2 * PASS;
    int64_t column = 0;
    if constexpr (2 * ROWS <= TILE_ROWS)
        for (; column + WIDE <= columns; column += WIDE)
            product<ROWS, 4, ADD>(a, depth, b + column * STEP<T>, columns, steps, c + column, shrink);
    for (; column < columns; column += PASS)
        product<ROWS, 2, ADD>(a, depth, b + column * STEP<T>, columns, steps, c + column, shrink);
}

template <typename T, bool ADD, int ROWS = TILE_ROWS>
void multiply(int64_t rows, const T* a, int64_t depth, const T* b, int64_t columns, int64_t steps, float* c,
              const float* shrink = nullptr) {
    if (rows == ROWS) return all_columns<T, ROWS, ADD>(a, depth, b, columns, steps, c, shrink);
    if constexpr (ROWS > 1) multiply<T, ADD, ROWS - 1>(rows, a, depth, b, columns, steps, c, shrink);
}

// ---- softmax -------------------------------------------------------------------------------------------------------

inline float exponential_of(float x) {
    float all[LANES];
    store(all, exponential(broadcast(x)));
    return all[0];
}

// Scores become weights relative to the row's largest score so far; returns what older sums shrink by.
template <typename T>
float soften(const float* scores, float scale, float& largest, float& total, T* weights) {
    Vec top = load(scores);
    for (int64_t i = LANES; i < KEYS; i += LANES) top = larger(load(scores + i), top);
    const float before = largest;
    largest = std::max(before, octavo::largest(top) * scale);
    const float shrink = before == largest ? 1.0f : exponential_of(before - largest);
    const Vec factor = broadcast(scale), level = broadcast(-largest);
    Vec parts = zero();
    for (int64_t i = 0; i < KEYS; i += LANES) {
        const Vec weight = exponential(fma(load(scores + i), factor, level));
        store(weights + i, weight);
        parts = parts + weight;
    }
    total = fma(broadcast(total), broadcast(shrink), broadcast(sum(parts)))[0];
    return shrink;
}

// Scores of keys that a query does not see: before its window, or after itself.
inline void hide(float* scores, int64_t first_key, int64_t position, int64_t window) {
    const int64_t begin = std::clamp<int64_t>(position + 1 - window - first_key, 0, KEYS);
    const int64_t end = std::clamp<int64_t>(position + 1 - first_key, 0, KEYS);
    std::fill(scores, scores + begin, HIDDEN);
    std::fill(scores + end, scores + KEYS, HIDDEN);
}

// `into` becomes the softmaxes of both: those of earlier keys, and of the piece after them.
inline void merge(Softmaxes into, Softmaxes piece, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; ++row) {
        const float top = std::max(into.largest[row], piece.largest[row]);
        const float keep = exponential_of(into.largest[row] - top), add = exponential_of(piece.largest[row] - top);
        into.largest[row] = top;
        into.totals[row] = fma(broadcast(into.totals[row]), broadcast(keep), broadcast(piece.totals[row] * add))[0];
        for (int64_t d = row * width; d < (row + 1) * width; d += LANES)
            store(into.outputs + d,
                  fma(load(into.outputs + d), broadcast(keep), load(piece.outputs + d) * broadcast(add)));
    }
}

inline void clear(Softmaxes of, int64_t rows, int64_t width) {
    std::fill_n(of.outputs, rows * width, 0.0f);
    std::fill_n(of.totals, rows, 0.0f);
    std::fill_n(of.largest, rows, NOTHING);
}

// ---- a piece -------------------------------------------------------------------------------------------------------

// The work of one item. Its rows are those of one key/value head after the other.
template <typename T>
struct Job {
    const AttentionStep& step;
    const QueryTile& tile;
    int64_t kv_head, kv_heads;
    const T *key_cache, *value_cache;

    int64_t rows() const { return tile.count * step.group(); }  // of one key/value head
    int64_t position(int64_t row) const { return step.position(tile.sequence, tile.first + row / step.group()); }
    int64_t last() const { return position(rows() - 1); }  // key that is seen
    Rows<T> at(int64_t key) const { return {step, key_cache, value_cache, tile.sequence, kv_head, key}; }
};

// Up to TILE_ROWS rows of one key/value head, from `row` on, meet a tile of keys.
template <typename T>
void add_tile(const Job<T>& job, const Workspace<T>& work, const T* queries, Softmaxes to, int64_t row, int64_t rows,
              int64_t first_key, int64_t count, Ahead<T>& ahead) {
    alignas(64) float scores[TILE_ROWS * KEYS];
    alignas(64) T weights[TILE_ROWS * KEYS];
    float shrink[TILE_ROWS];
    multiply<T, false>(rows, queries + row * work.depth, work.depth, work.keys, KEYS, work.depth / STEP<T>, scores);
    for (int64_t i = 0; i < rows; ++i) {
        float* of = scores + i * KEYS;
        hide(of, first_key, job.position(row + i), job.step.window);
        shrink[i] = soften(of, job.step.scale, to.largest[row + i], to.totals[row + i], weights + i * KEYS);
    }
    ahead.fetch_some();
    multiply<T, true>(rows, weights, KEYS, work.values, work.width, up_to(count, STEP<T>) / STEP<T>,
                      to.outputs + row * work.width, shrink);
}

// All rows of one key/value head, the job's `head`-th, meet a tile of keys.
template <typename T>
void add_keys(const Job<T>& job, Workspace<T>& work, Softmaxes to, int64_t head, int64_t first_key, const Rows<T>& from,
              Ahead<T>& ahead) {
    const int64_t rows = job.rows(), blocks = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const T* queries = work.queries + head * rows * work.depth;
    ahead.fetch_some();
    turn_keys(from, head * work.dim, work.dim, work.keys);
    ahead.fetch_some();
    pair_values(from, head * work.dim, work.dim, work.width, work.values);
    ahead.fetch_some();
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t row = rows * block / blocks, next = rows * (block + 1) / blocks;
        if (first_key <= job.position(next - 1))
            add_tile(job, work, queries, to, row, next - row, first_key, from.count, ahead);
    }
}

// All rows against the keys [begin, end) of one piece.
template <typename T>
void add_piece(const Job<T>& job, Workspace<T>& work, Softmaxes to, int64_t begin, int64_t end) {
    constexpr int64_t TIMES_A_HEAD = 4;
    clear(to, work.rows, work.width);
    Rows<T> here = job.at(begin);
    for (int64_t key = begin; key < end; key += KEYS) {
        const bool more = key + KEYS <= job.last();
        Ahead<T> ahead{more ? job.at(key + KEYS) : here, job.kv_heads * work.dim};
        ahead.share = more ? (KEYS + TIMES_A_HEAD * job.kv_heads - 1) / (TIMES_A_HEAD * job.kv_heads) : 0;
        for (int64_t head = 0; head < job.kv_heads; ++head)
            add_keys(job, work, to.from(head * job.rows(), work.width), head, key, here, ahead);
        here = ahead.rows;
    }
}

// The rows' queries, side by side.
template <typename T>
void gather_queries(const Job<T>& job, const T* query, int64_t stride, Workspace<T>& work) {
    const int64_t group = job.step.group(), dim = work.dim;
    const T* first = query + (job.step.starts[job.tile.sequence] + job.tile.first) * stride + job.kv_head * group * dim;
    T* to = work.queries;
    for (int64_t kv_head = 0; kv_head < job.kv_heads; ++kv_head)
        for (int64_t i = 0; i < job.tile.count; ++i)
            for (int64_t head = 0; head < group; ++head, to += work.depth) {
                std::copy_n(first + i * stride + (kv_head * group + head) * dim, dim, to);
                std::fill(to + dim, to + work.depth, T{});
            }
}

// One row's sums, weighed, are its output.
template <typename T>
void write_out(Softmaxes of, int64_t row, int64_t width, int64_t dim, T* out) {
    const Vec share = broadcast(1.0f / of.totals[row]);
    for (int64_t d = 0; d < dim; d += LANES) store(out + d, load(of.outputs + row * width + d) * share, lanes(d, dim));
}

}  // namespace
}  // namespace octavo
