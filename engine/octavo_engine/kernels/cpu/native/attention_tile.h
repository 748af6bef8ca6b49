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
    Buffer<Wide> wide_query_memory, wide_key_memory, wide_value_memory;
    SoftmaxMemory total_memory, piece_memory;
    T *queries, *keys, *last_values;  // [rows][dim]; what a tile of keys and its last word of values may be copied to
    Wide *wide_queries, *wide_keys, *wide_values;  // the same [rows][dim]; [dim][KEYS] and [KEYS][dim] of a tile
    Softmaxes total, piece;
    int64_t dim, width, rows;

    void fit(int64_t dim_, int64_t rows_) {
        dim = dim_, rows = rows_, width = output_width(dim);
        queries = query_memory.fit(rows * dim);
        keys = key_memory.fit(dim * KEYS);
        last_values = value_memory.fit(dim * STEP<T>);
        if (WIDENS<T>) {
            wide_queries = wide_query_memory.fit(rows * dim);
            wide_keys = wide_key_memory.fit(dim * KEYS), wide_values = wide_value_memory.fit(KEYS * dim);
        }
        total = total_memory.fit(rows, width), piece = piece_memory.fit(rows, width);
    }
};

// ---- a tile of keys and values -------------------------------------------------------------------------------------

// Where the keys and values of some tokens of a sequence lie, of one key/value head; those of the heads after it follow
// in each block.
template <typename T>
struct Tile {
    CacheBlock<T> form;
    int64_t count;                   // of tokens
    int64_t first;                   // token of its block that is the tile's first one
    const T* keys[KEYS];             // of each block: as many as there are
    const T* vectors[KEYS / LANES];  // of keys: LANES tokens of a block, if blocks are whole vectors
    const T* words[KEYS / STEP<T>];  // of values

    Tile(const AttentionStep& step, const T* key_cache, const T* value_cache, int64_t sequence, int64_t kv_head,
         int64_t token)
        : form{step.block_size, step.dim},
          count(std::min<int64_t>(KEYS, step.lengths[sequence] - token)),
          first(token % step.block_size) {
        const int32_t* block = step.tables + sequence * step.table_stride + token / step.block_size;
        for (int64_t at = -first, index = 0; at < count; at += form.size, ++index, ++block) {
            const int64_t place = (*block * step.kv_heads + kv_head) * form.numbers();
            keys[index] = key_cache + place;
            const int64_t begin = std::max<int64_t>(0, at), end = std::min(count, at + form.size);
            for (int64_t i = begin; i < end; i += LANES) vectors[i / LANES] = keys[index] + form.key(i - at, 0);
            for (int64_t i = begin; i < end; i += STEP<T>)
                words[i / STEP<T>] = value_cache + place + form.value(i - at, 0);
        }
        for (int64_t i = (count + LANES - 1) / LANES; i < KEYS / LANES; ++i) vectors[i] = vectors[0];  // read, not used
        for (int64_t i = (count + STEP<T> - 1) / STEP<T>; i < KEYS / STEP<T>; ++i) words[i] = words[0];
    }
};

// One key/value head's keys of a tile as products read them: vectors of LANES tokens, one word of each at every step.
template <typename T>
struct KeyColumns {
    const T* vectors[KEYS / LANES];
    int64_t stride;  // numbers from word to word

    // Of the tile's `head`-th; copied where blocks are not whole vectors, unless they are not read (no `copy`).
    KeyColumns(const Tile<T>& tile, int64_t head, T* copy) : stride(tile.form.size * STEP<T>) {
        const int64_t offset = head * tile.form.numbers();
        for (int64_t i = 0; i < KEYS / LANES; ++i) vectors[i] = tile.vectors[i] + offset;
        if (copy && tile.form.size % LANES) copy_keys(tile, offset, copy);
    }

    const T* at(int64_t step, int64_t vector) const { return vectors[vector] + step * stride; }

private:
    void copy_keys(const Tile<T>& tile, int64_t offset, T* copy) {
        const CacheBlock<T> whole{KEYS, tile.form.dim};
        for (int64_t token = 0; token < tile.count; ++token) {
            const int64_t place = tile.first + token, size = tile.form.size;
            const T* from = tile.keys[place / size] + offset;
            for (int64_t d = 0; d < whole.dim; ++d) copy[whole.key(token, d)] = from[tile.form.key(place % size, d)];
        }
        for (int64_t i = 0; i < KEYS / LANES; ++i) vectors[i] = copy + i * LANES * STEP<T>;
        stride = KEYS * STEP<T>;
    }
};

// The values: a word of tokens at every step, with all its numbers.
template <typename T>
struct ValueColumns {
    const T* words[KEYS / STEP<T>];

    // A last word that is not full is copied: whatever lies beside its tokens, no weight makes nothing of it.
    ValueColumns(const Tile<T>& tile, int64_t head, T* copy) {
        const int64_t offset = head * tile.form.numbers(), last = tile.count / STEP<T>;
        for (int64_t i = 0; i < KEYS / STEP<T>; ++i) words[i] = tile.words[i] + offset;
        if (!copy || tile.count % STEP<T> == 0) return;
        for (int64_t i = 0; i < tile.form.dim * STEP<T>; ++i) copy[i] = i % STEP<T> ? T{} : words[last][i];
        words[last] = copy;
    }

    const T* at(int64_t step, int64_t vector) const { return words[step] + vector * Dot<T>::WIDTH; }
};

// A tile's keys or values when they are widened: one number of each column at every step, all side by side.
struct WideColumns {
    const Wide* first;
    int64_t stride;

    const Wide* at(int64_t step, int64_t vector) const { return first + step * stride + vector * LANES; }
};

// ---- products ------------------------------------------------------------------------------------------------------

// A tile's columns, and those of the tile that comes next: of that, each line is asked for where the same of this one
// is read. Processors do not foresee blocks that lie anywhere, and a core waits for few lines of memory at once.
template <typename Columns>
struct InTurn {
    const Columns &now, &next;

    void ask_for_next(int64_t step, int64_t vector) const {
        __builtin_prefetch(next.at(step, vector), 0, 2);  // second level: the first is smaller than a tile
    }
};

// Columns that are all at hand.
struct AtHand {
    WideColumns now;

    static void ask_for_next(int64_t, int64_t) {}
};

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
        for (int i = 0; i < VECTORS; ++i) {
            const T* from = b.now.at(step, first + i);
            const int64_t numbers = std::max<int64_t>(0, left - i * Dot<T>::WIDTH);
            column[i] = RAGGED ? Dot<T>::load(from, numbers) : Dot<T>::load(from);
            b.ask_for_next(step, first + i);
        }
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

// Numbers of bfloat16 are short enough for sums in float32, as they are or widened.
template <int ROWS, int VECTORS, bool ADD, bool RAGGED, typename T, typename Columns>
void product(const T* a, int64_t depth, const Columns& b, int64_t first, int64_t steps, int64_t left, float* c,
             int64_t width, const float* shrink) {
    product_in_float<T, ROWS, VECTORS, ADD, RAGGED>(a, depth, b, first, 0, steps, left, c, width, shrink);
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
    int64_t column = 0;
    const auto pass = [&](auto vectors, auto ragged) {
        product<ROWS, vectors, ADD, ragged>(a, depth, b, column / LANES, steps, (columns - column) * STEP<T>,
                                            c + column, width, shrink);
        column += vectors * LANES;
    };
    using std::bool_constant, std::integral_constant;
    if constexpr (2 * ROWS <= TILE_ROWS)
        while (column + 2 * PASS <= columns) pass(integral_constant<int, 4>{}, bool_constant<false>{});
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

constexpr int64_t WIDE_BLOCKS = 4;  // of rows that meet a widened tile together
constexpr int64_t WORTH_WIDENING = 4 * TILE_ROWS;  // rows; fewer take less time to widen what they read each time

// Whether so many rows of one key/value head meet keys and values that were widened: if these are whole vectors.
template <typename T>
bool is_widened(int64_t rows, int64_t dim) {
    return WIDENS<T> && rows >= WORTH_WIDENING && dim % PASS == 0;
}

// The work of one item: the keys [begin, end), and rows of one key/value head after the other.
template <typename T>
struct Job {
    const AttentionStep& step;
    const QueryTile& tile;
    int64_t kv_head, kv_heads, begin, end;
    const T *keys, *values;

    int64_t rows() const { return tile.count * step.group(); }  // of one key/value head
    int64_t position(int64_t row) const { return step.position(tile.sequence, tile.first + row / step.group()); }
    Tile<T> at(int64_t key) const { return {step, keys, values, tile.sequence, kv_head, key}; }
};

// One row's scores of a tile become weights; returns what older sums shrink by.
template <typename T>
float weigh(const Job<T>& job, Softmaxes to, int64_t row, int64_t first_key, float* scores, T* weights) {
    hide(scores, first_key, job.position(row), job.step.window);
    return soften(scores, job.step.scale, to.largest[row], to.totals[row], weights);
}

// Up to TILE_ROWS rows of one key/value head, from `row` on, meet a tile of keys.
template <typename T>
void add_rows(const Job<T>& job, const Workspace<T>& work, const T* queries, Softmaxes to, int64_t row, int64_t rows,
              int64_t first_key, int64_t count, const InTurn<KeyColumns<T>>& keys,
              const InTurn<ValueColumns<T>>& values) {
    alignas(64) float scores[TILE_ROWS * KEYS];
    alignas(64) T weights[TILE_ROWS * KEYS];
    float shrink[TILE_ROWS];
    multiply<T, false>(rows, queries + row * work.dim, work.dim, keys, up_to(count, PASS), work.dim / STEP<T>, scores,
                       KEYS);
    for (int64_t i = 0; i < rows; ++i)
        shrink[i] = weigh(job, to, row + i, first_key, scores + i * KEYS, weights + i * KEYS);
    multiply<T, true>(rows, weights, KEYS, values, work.dim, up_to(count, STEP<T>) / STEP<T>,
                      to.outputs + row * work.width, work.width, shrink);
}

// Columns, widened and turned so that a number of each lies beside the same of the others: `steps` words of `vectors`
// vectors. Others are asked for meanwhile.
template <typename T, typename Columns>
void widen(const InTurn<Columns>& columns, int64_t steps, int64_t vectors, Wide* out) {
    for (int64_t step = 0; step < steps; ++step)
        for (int64_t i = 0; i < vectors; ++i) {
            columns.ask_for_next(step, i);
            for (int part = 0; part < Dot<T>::PARTS; ++part)
                store(&out[((step * Dot<T>::PARTS + part) * vectors + i) * LANES].number,
                      Dot<T>::column(columns.now.at(step, i), part));
        }
}

// As add_rows, of a tile that was widened, for up to WIDE_BLOCKS * PRODUCT_ROWS rows: first all their scores are
// computed, and then all their sums, since keys and values together would not stay in the first cache.
template <typename T>
void add_wide_rows(const Job<T>& job, const Workspace<T>& work, const Wide* queries, Softmaxes to, int64_t row,
                   int64_t rows, int64_t first_key, int64_t count, const AtHand& keys, const AtHand& values) {
    alignas(64) float scores[WIDE_BLOCKS * PRODUCT_ROWS * KEYS];
    alignas(64) T weights[KEYS];
    float shrink[WIDE_BLOCKS * PRODUCT_ROWS];
    for (int64_t i = 0; i < rows; i += PRODUCT_ROWS)
        multiply<Wide, false, PRODUCT_ROWS>(std::min(PRODUCT_ROWS, rows - i), queries + (row + i) * work.dim, work.dim,
                                            keys, up_to(count, PASS), work.dim, scores + i * KEYS, KEYS);
    for (int64_t i = 0; i < rows; ++i) {
        float* of = scores + i * KEYS;
        shrink[i] = weigh(job, to, row + i, first_key, of, weights);
        for (int64_t key = 0; key < KEYS; key += LANES) store(of + key, load(weights + key));  // as rounded
    }
    for (int64_t i = 0; i < rows; i += PRODUCT_ROWS)
        multiply<Wide, true, PRODUCT_ROWS>(std::min(PRODUCT_ROWS, rows - i),
                                           reinterpret_cast<const Wide*>(scores + i * KEYS), KEYS, values, work.dim,
                                           up_to(count, STEP<T>), to.outputs + (row + i) * work.width, work.width,
                                           shrink + i);
}

// As add_tile, for many rows.
template <typename T>
void add_wide_tile(const Job<T>& job, Workspace<T>& work, Softmaxes to, int64_t head, int64_t first_key, int64_t count,
                   const InTurn<KeyColumns<T>>& keys, const InTurn<ValueColumns<T>>& values) {
    constexpr int64_t BLOCK = WIDE_BLOCKS * PRODUCT_ROWS;
    const int64_t rows = job.rows();
    const Wide* queries = work.wide_queries + head * rows * work.dim;
    widen<T>(keys, work.dim / STEP<T>, KEYS / LANES, work.wide_keys);
    widen<T>(values, up_to(count, STEP<T>) / STEP<T>, work.dim / LANES, work.wide_values);
    const AtHand wide_keys{{work.wide_keys, KEYS}}, wide_values{{work.wide_values, work.dim}};
    for (int64_t row = 0; row < rows; row += BLOCK) {
        const int64_t end = std::min(row + BLOCK, rows);
        if (first_key <= job.position(end - 1))
            add_wide_rows(job, work, queries, to, row, end - row, first_key, count, wide_keys, wide_values);
    }
}

// All rows of one key/value head, the job's `head`-th, meet a tile of keys.
template <typename T>
void add_tile(const Job<T>& job, Workspace<T>& work, Softmaxes to, int64_t head, int64_t first_key, const Tile<T>& tile,
              const Tile<T>& next) {
    const int64_t rows = job.rows(), blocks = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const T* queries = work.queries + head * rows * work.dim;
    const KeyColumns<T> keys(tile, head, work.keys), next_keys(next, head, nullptr);
    const ValueColumns<T> values(tile, head, work.last_values), next_values(next, head, nullptr);
    if constexpr (WIDENS<T>)
        if (is_widened<T>(rows, work.dim))
            return add_wide_tile<T>(job, work, to, head, first_key, tile.count, {keys, next_keys},
                                    {values, next_values});
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t row = rows * block / blocks, end = rows * (block + 1) / blocks;
        if (first_key <= job.position(end - 1))
            add_rows(job, work, queries, to, row, end - row, first_key, tile.count, {keys, next_keys},
                     {values, next_values});
    }
}

// All rows against the keys [begin, end) of one piece. `next`: the thread's next job, or null.
template <typename T>
void add_piece(const Job<T>& job, const Job<T>* next, Workspace<T>& work, Softmaxes to, int64_t begin, int64_t end) {
    clear(to, work.rows, work.width);
    Tile<T> tile = job.at(begin);
    for (int64_t key = begin; key < end; key += KEYS) {
        const bool more = key + KEYS < job.end;
        const Tile<T> following = more ? job.at(key + KEYS) : next ? next->at(next->begin) : tile;
        for (int64_t head = 0; head < job.kv_heads; ++head)
            add_tile(job, work, to.from(head * job.rows(), work.width), head, key, tile, following);
        tile = following;
    }
}

// The rows' queries, side by side; widened, too, if they meet keys that are.
template <typename T>
void gather_queries(const Job<T>& job, const T* query, int64_t stride, Workspace<T>& work) {
    const int64_t group = job.step.group(), dim = work.dim;
    const T* first = query + (job.step.starts[job.tile.sequence] + job.tile.first) * stride + job.kv_head * group * dim;
    T* to = work.queries;
    for (int64_t kv_head = 0; kv_head < job.kv_heads; ++kv_head)
        for (int64_t i = 0; i < job.tile.count; ++i, to += group * dim)
            std::copy_n(first + i * stride + kv_head * group * dim, group * dim, to);
    if (!is_widened<T>(job.rows(), dim)) return;
    for (int64_t i = 0; i < work.rows * dim; i += LANES) store(&work.wide_queries[i].number, load(work.queries + i));
}

// One row's sums, weighed, are its output.
template <typename T>
void write_out(Softmaxes of, int64_t row, int64_t width, int64_t dim, T* out) {
    const Vec share = broadcast(1.0f / of.totals[row]);
    for (int64_t d = 0; d < dim; d += LANES) store(out + d, load(of.outputs + row * width + d) * share, lanes(d, dim));
}

}  // namespace
}  // namespace octavo
