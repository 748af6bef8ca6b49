// Some queries of a sequence against a piece of its context, for some key/value heads and all query heads that share
// them.
//
// Keys come in tiles, which are read where they lie (cache_block.h) and meet all rows (queries x heads) while they are
// at hand: products in the type of the cache, sums and running softmax (https://arxiv.org/abs/2205.14135) in float32.
// Single queries and chunks of prompts take the same way: so a query's sums have one order, whoever comes with it.
#pragma once

#include <limits>

#include "attention.h"
#include "cache_block.h"
#include "vectors.h"

namespace octavo {
namespace {

// Less than any score, but finite: a difference of two of them is a number.
constexpr float NOTHING = -std::numeric_limits<float>::max();
constexpr float HIDDEN = -std::numeric_limits<float>::infinity();

// A thread's memory, kept from item to item.
template <typename T>
struct Workspace {
    Buffer<T> query_memory, key_memory, value_memory;
    SoftmaxMemory total_memory, piece_memory;
    T *queries, *keys, *last_values;  // [rows][dim]; what a tile of keys and its last word of values may be copied to
    Softmaxes total, piece;
    int64_t dim, width, rows;

    void fit(int64_t dim_, int64_t rows_) {
        dim = dim_, rows = rows_, width = output_width(dim);
        queries = query_memory.fit(rows * dim);
        keys = key_memory.fit(dim * KEYS);
        last_values = value_memory.fit(dim * STEP<T>);
        total = total_memory.fit(rows, width), piece = piece_memory.fit(rows, width);
    }
};

// ---- a tile of keys and values -------------------------------------------------------------------------------------

// Where the keys and values of some tokens of a sequence lie.
template <typename T>
struct Tile {
    struct Part {
        int64_t block, token;  // the numbers of a cache before the block; a token in it
    };
    CacheBlock<T> form;
    int64_t block_numbers, count;  // of all heads; tokens
    const int32_t* blocks;         // from that of the first token on
    int64_t first;                 // in it

    Tile(const AttentionStep& step, int64_t sequence, int64_t token)
        : form{step.block_size, step.dim},
          block_numbers(step.block_size * step.kv_heads * step.dim),
          count(std::min<int64_t>(KEYS, step.lengths[sequence] - token)),
          blocks(step.tables + sequence * step.table_stride + token / step.block_size),
          first(token % step.block_size) {}

    Part part(int64_t token) const {
        const int64_t place = first + token;
        return {blocks[place / form.size] * block_numbers, place % form.size};
    }
    int64_t num_blocks() const { return (first + count + form.size - 1) / form.size; }
};

// The tile that comes next, asked for a few lines at a time between the work on others: processors do not foresee
// blocks that lie anywhere, and a core waits for few lines of memory at once.
template <typename T>
struct Ahead {
    static constexpr int64_t LINE = 64 / sizeof(T);
    Tile<T> tile;
    const T* caches[2];                // keys and values, from the first of the heads on
    int64_t numbers, lines, share;     // of a block's heads; of all blocks and both caches; lines at a time
    int64_t done = 0;

    Ahead(const Tile<T>& tile, const T* keys, const T* values, int64_t numbers, int64_t times)
        : tile(tile), caches{keys, values}, numbers(numbers), lines(2 * tile.num_blocks() * block_lines()),
          share((lines + times - 1) / times) {}

    int64_t block_lines() const { return (numbers + LINE - 1) / LINE; }

    // Inline, or the compiler drops the call: it has no effect that it knows of.
    __attribute__((always_inline)) void fetch_some() {
        const int64_t end = std::min(done + share, lines);
        while (done < end) {
            const int64_t block = done / block_lines() / 2, line = done % block_lines();
            const T* from = caches[done / block_lines() % 2] + tile.blocks[block] * tile.block_numbers;
            const int64_t last = std::min(block_lines(), line + end - done);
            done += last - line;
            for (int64_t at = line; at < last; ++at)  // to the second level: the first is smaller than a tile
                __builtin_prefetch(from + at * LINE, 0, 2);
        }
    }
};

// The keys of a tile as products read them: vectors of LANES tokens, one word of each at every step.
template <typename T>
struct KeyColumns {
    const T* vectors[KEYS / LANES];
    int64_t stride;  // numbers from word to word

    const T* at(int64_t step, int64_t vector) const { return vectors[vector] + step * stride; }
};

// Vectors lie within one block if blocks are whole vectors; otherwise the tile is copied.
template <typename T>
KeyColumns<T> key_columns(const Tile<T>& tile, const T* cache, int64_t head, T* copy) {
    KeyColumns<T> columns;
    const int64_t offset = head * tile.form.numbers();
    if (tile.form.size % LANES == 0) {
        columns.stride = tile.form.size * STEP<T>;
        for (int64_t i = 0; i < KEYS / LANES; ++i) {
            const auto part = tile.part(std::min(i * LANES, (tile.count - 1) / LANES * LANES));
            columns.vectors[i] = cache + part.block + offset + tile.form.key(part.token, 0);
        }
        return columns;
    }
    columns.stride = KEYS * STEP<T>;
    for (int64_t token = 0; token < tile.count; ++token) {
        const auto part = tile.part(token);
        for (int64_t d = 0; d < tile.form.dim; ++d)
            copy[CacheBlock<T>{KEYS, tile.form.dim}.key(token, d)] =
                cache[part.block + offset + tile.form.key(part.token, d)];
    }
    for (int64_t i = 0; i < KEYS / LANES; ++i) columns.vectors[i] = copy + i * LANES * STEP<T>;
    return columns;
}

// The values of a tile: a word of tokens at every step, with all its numbers.
template <typename T>
struct ValueColumns {
    const T* words[KEYS / STEP<T>];

    const T* at(int64_t step, int64_t vector) const { return words[step] + vector * Dot<T>::WIDTH; }
};

// A last word that is not full is copied: whatever lies beside its tokens, no weight makes nothing of it.
template <typename T>
ValueColumns<T> value_columns(const Tile<T>& tile, const T* cache, int64_t head, T* copy) {
    ValueColumns<T> columns;
    const int64_t offset = head * tile.form.numbers();
    for (int64_t token = 0; token < tile.count; token += STEP<T>) {
        const auto part = tile.part(token);
        const T* from = cache + part.block + offset + tile.form.value(part.token, 0);
        columns.words[token / STEP<T>] = token + STEP<T> <= tile.count ? from : copy;
        if (token + STEP<T> > tile.count)
            for (int64_t i = 0; i < tile.form.dim * STEP<T>; ++i) copy[i] = i % STEP<T> ? T{} : from[i];
    }
    return columns;
}

// ---- products ------------------------------------------------------------------------------------------------------

// c = a . b, or c = c * shrink + a . b, for ROWS rows of a and VECTORS vectors of columns of b from `first` on, for
// the words [begin, end). Of the last vector only `left` numbers are read. Rows of a lie `depth` numbers apart, of c
// `width`.
template <typename T, int ROWS, int VECTORS, bool ADD, bool RAGGED, typename Columns>
void product_in_float(const T* a, int64_t depth, const Columns& b, int64_t first, int64_t begin, int64_t end,
                      int64_t left, float* c, int64_t width, const float* shrink) {
    Vec sum[ROWS][VECTORS];
#pragma GCC unroll 12  // all loops over rows and vectors: only then do the sums stay in registers
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; ++i)
            sum[row][i] = ADD ? load(c + row * width + i * LANES) * broadcast(shrink[row]) : zero();
    for (int64_t step = begin; step < end; ++step) {
        typename Dot<T>::Operand column[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; ++i)
            column[i] = RAGGED ? Dot<T>::load(b.at(step, first + i), std::max<int64_t>(0, left - i * Dot<T>::WIDTH))
                               : Dot<T>::load(b.at(step, first + i));
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row) {
            const auto word = Dot<T>::broadcast(a + row * depth + step * STEP<T>);
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
template <int ROWS, int VECTORS, bool ADD, bool RAGGED, typename Columns>
void product(const Bf16* a, int64_t depth, const Columns& b, int64_t first, int64_t steps, int64_t left, float* c,
             int64_t width, const float* shrink) {
    product_in_float<Bf16, ROWS, VECTORS, ADD, RAGGED>(a, depth, b, first, 0, steps, left, c, width, shrink);
}

// Products of float32 are summed in float64 every FOLD words, as in linear.cpp: an error of a score is one of all that
// its key weighs.
template <int ROWS, int VECTORS, bool ADD, bool RAGGED, typename Columns>
void product(const float* a, int64_t depth, const Columns& b, int64_t first, int64_t steps, int64_t left, float* c,
             int64_t width, const float* shrink) {
    constexpr int64_t FOLD = 16, WIDTH = VECTORS * LANES;
    Doubles total[ROWS][VECTORS] = {};
    alignas(64) float part[ROWS * WIDTH];
    for (int64_t step = 0; step < steps; step += FOLD) {
        product_in_float<float, ROWS, VECTORS, false, RAGGED>(a, depth, b, first, step, std::min(step + FOLD, steps),
                                                              left, part, WIDTH, nullptr);
        for (int row = 0; row < ROWS; ++row)
            for (int i = 0; i < VECTORS; ++i)
                total[row][i] = total[row][i] + wide(load(part + row * WIDTH + i * LANES));
    }
    for (int row = 0; row < ROWS; ++row)
        for (int i = 0; i < VECTORS; ++i) {
            float* to = c + row * width + i * LANES;
            if (ADD) total[row][i] = total[row][i] + wide(load(to) * broadcast(shrink[row]));
            store(to, narrow(total[row][i]));
        }
}

// All columns, of which the last may be no whole pass; few rows take twice as many at once, to keep as many sums going.
// Rows of c are whole passes.
template <typename T, int ROWS, bool ADD, typename Columns>
void all_columns(const T* a, int64_t depth, const Columns& b, int64_t columns, int64_t steps, float* c, int64_t width,
                 const float* shrink) {
    constexpr int64_t WIDE = 2 * PASS;
    int64_t column = 0;
    const auto pass = [&](auto vectors, auto ragged) {
        product<ROWS, vectors, ADD, ragged>(a, depth, b, column / LANES, steps, (columns - column) * STEP<T>,
                                            c + column, width, shrink);
        column += vectors * LANES;
    };
    using std::bool_constant, std::integral_constant;
    if constexpr (2 * ROWS <= TILE_ROWS)
        while (column + WIDE <= columns) pass(integral_constant<int, 4>{}, bool_constant<false>{});
    while (column + PASS <= columns) pass(integral_constant<int, 2>{}, bool_constant<false>{});
    if (column < columns) pass(integral_constant<int, 2>{}, bool_constant<true>{});
}

template <typename T, bool ADD, int ROWS = TILE_ROWS, typename Columns>
void multiply(int64_t rows, const T* a, int64_t depth, const Columns& b, int64_t columns, int64_t steps, float* c,
              int64_t width, const float* shrink = nullptr) {
    if (rows == ROWS) return all_columns<T, ROWS, ADD>(a, depth, b, columns, steps, c, width, shrink);
    if constexpr (ROWS > 1) multiply<T, ADD, ROWS - 1>(rows, a, depth, b, columns, steps, c, width, shrink);
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

// The work of one item: the keys [begin, end), and rows of one key/value head after the other.
template <typename T>
struct Job {
    const AttentionStep& step;
    const QueryTile& tile;
    int64_t kv_head, kv_heads, begin, end;
    const T *keys, *values;

    int64_t rows() const { return tile.count * step.group(); }  // of one key/value head
    int64_t position(int64_t row) const { return step.position(tile.sequence, tile.first + row / step.group()); }
    Tile<T> at(int64_t key) const { return {step, tile.sequence, key}; }

    // What a thread needs next, asked for in so many parts.
    Ahead<T> ahead(int64_t key, int64_t parts) const {
        const int64_t head = step.block_size * step.dim, offset = kv_head * head;
        return {at(key), keys + offset, values + offset, kv_heads * head, parts};
    }
};

// Up to TILE_ROWS rows of one key/value head, from `row` on, meet a tile of keys.
template <typename T>
void add_rows(const Job<T>& job, const Workspace<T>& work, const T* queries, Softmaxes to, int64_t row, int64_t rows,
              int64_t first_key, int64_t count, const KeyColumns<T>& keys, const ValueColumns<T>& values) {
    alignas(64) float scores[TILE_ROWS * KEYS];
    alignas(64) T weights[TILE_ROWS * KEYS];
    float shrink[TILE_ROWS];
    multiply<T, false>(rows, queries + row * work.dim, work.dim, keys, up_to(count, PASS), work.dim / STEP<T>, scores,
                       KEYS);
    for (int64_t i = 0; i < rows; ++i) {
        float* of = scores + i * KEYS;
        hide(of, first_key, job.position(row + i), job.step.window);
        shrink[i] = soften(of, job.step.scale, to.largest[row + i], to.totals[row + i], weights + i * KEYS);
    }
    multiply<T, true>(rows, weights, KEYS, values, work.dim, up_to(count, STEP<T>) / STEP<T>,
                      to.outputs + row * work.width, work.width, shrink);
}

// All rows of one key/value head, the job's `head`-th, meet a tile of keys.
template <typename T>
void add_tile(const Job<T>& job, Workspace<T>& work, Softmaxes to, int64_t head, int64_t first_key, const Tile<T>& tile,
              Ahead<T>& ahead) {
    const int64_t rows = job.rows(), blocks = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const T* queries = work.queries + head * rows * work.dim;
    const auto keys = key_columns(tile, job.keys, job.kv_head + head, work.keys);
    const auto values = value_columns(tile, job.values, job.kv_head + head, work.last_values);
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t row = rows * block / blocks, next = rows * (block + 1) / blocks;
        ahead.fetch_some();
        if (first_key <= job.position(next - 1))
            add_rows(job, work, queries, to, row, next - row, first_key, tile.count, keys, values);
    }
}

// All rows against the keys [begin, end) of one piece. `next`: the thread's next job, or null.
template <typename T>
void add_piece(const Job<T>& job, const Job<T>* next, Workspace<T>& work, Softmaxes to, int64_t begin, int64_t end) {
    const int64_t parts = job.kv_heads * ((job.rows() + TILE_ROWS - 1) / TILE_ROWS);
    clear(to, work.rows, work.width);
    for (int64_t key = begin; key < end; key += KEYS) {
        const bool more = key + KEYS < job.end;
        const Job<T>& coming = !more && next ? *next : job;
        Ahead<T> ahead = coming.ahead(more ? key + KEYS : next ? next->begin : key, parts);
        for (int64_t head = 0; head < job.kv_heads; ++head)
            add_tile(job, work, to.from(head * job.rows(), work.width), head, key, job.at(key), ahead);
    }
}

// The rows' queries, side by side.
template <typename T>
void gather_queries(const Job<T>& job, const T* query, int64_t stride, Workspace<T>& work) {
    const int64_t group = job.step.group(), dim = work.dim;
    const T* first = query + (job.step.starts[job.tile.sequence] + job.tile.first) * stride + job.kv_head * group * dim;
    T* to = work.queries;
    for (int64_t kv_head = 0; kv_head < job.kv_heads; ++kv_head)
        for (int64_t i = 0; i < job.tile.count; ++i, to += group * dim)
            std::copy_n(first + i * stride + kv_head * group * dim, group * dim, to);
}

// One row's sums, weighed, are its output.
template <typename T>
void write_out(Softmaxes of, int64_t row, int64_t width, int64_t dim, T* out) {
    const Vec share = broadcast(1.0f / of.totals[row]);
    for (int64_t d = 0; d < dim; d += LANES) store(out + d, load(of.outputs + row * width + d) * share, lanes(d, dim));
}

}  // namespace
}  // namespace octavo
