// What a step's attention is, and how it is cut into work. Plain values: the arithmetic is in attention_tile.h.
//
// What a query gets must not depend on who shares its step. So nothing that decides the order of its sums does: keys
// are added in tiles and pieces that begin at fixed positions of the sequence, and pieces are always merged in order,
// whether one thread computes them or several.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "buffer.h"
#include "team.h"
#include "vectors.h"

namespace octavo {

// The attention of one layer's step (kernels/cpu/attention.py has the same fields).
struct AttentionStep {
    const int32_t* tables;   // [sequences][table_stride], blocks of each sequence
    const int32_t* lengths;  // [sequences], tokens of each, this step's included
    const int32_t* starts;   // [sequences + 1], its first query; a sequence's queries are its last tokens
    int64_t table_stride, sequences, block_size, query_heads, kv_heads, dim;
    int64_t window;  // tokens that a query sees at most
    float scale;     // factor on query x key, positive

    int64_t group() const { return query_heads / kv_heads; }
    int64_t queries(int64_t sequence) const { return starts[sequence + 1] - starts[sequence]; }
    int64_t position(int64_t sequence, int64_t query) const { return lengths[sequence] - queries(sequence) + query; }
};

constexpr int64_t up_to(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

constexpr int64_t PASS = 2 * LANES;  // columns of a register tile of TILE_ROWS rows

// Width of a row of outputs.
inline int64_t output_width(int64_t dim) { return up_to(dim, PASS); }

constexpr int64_t KEYS = 64;                // of a tile: its scores are computed at once
constexpr int64_t PIECE = 4 * KEYS;         // keys that share a running softmax
constexpr int64_t QUERY_ROWS = 192;         // queries x heads that meet a tile of keys while it is at hand
constexpr int64_t ITEMS_A_THREAD = 4;       // so that uneven work evens out
constexpr int64_t ROWS_OF_A_FETCH = 8;      // a tile of keys costs as much to fetch as this many queries to answer

// Some queries of one sequence, and the pieces of its context that they see.
struct QueryTile {
    int64_t sequence, first, count;      // queries [first, first + count)
    int64_t first_piece, pieces;
    int64_t kept = WHOLE;  // row of Kept at which its pieces' results begin; WHOLE: one thread computes all of them

    static constexpr int64_t WHOLE = -1, ALL_PIECES = -1;
};

struct Item {
    int64_t tile, kv_head, kv_heads;  // key/value heads [kv_head, kv_head + kv_heads)
    int64_t piece;                    // from first_piece on; or ALL_PIECES
};

// Running softmaxes of some rows: sums of weighted values, of weights, and the largest score that they are relative to.
struct Softmaxes {
    float *outputs, *totals, *largest;  // [rows][width], [rows], [rows]

    Softmaxes from(int64_t row, int64_t width) const { return {outputs + row * width, totals + row, largest + row}; }
};

// The same with their memory.
struct SoftmaxMemory {
    Buffer<float> outputs, totals, largest;

    Softmaxes fit(int64_t rows, int64_t width) {
        return {outputs.fit(rows * width), totals.fit(rows), largest.fit(rows)};
    }
};

struct Plan {
    std::vector<QueryTile> tiles;
    std::vector<Item> items;  // the costly ones first
    Softmaxes kept;           // of the tiles that are cut at their pieces
    bool cut_at_pieces;       // some are
    std::atomic<int64_t> taken;   // items, by all threads of the team
    std::atomic<int64_t> merged;  // the same of tiles with their heads, when all items are done

    // Tiles of all queries; one that is more than its share of the step is cut at its pieces.
    void cut(const AttentionStep& step, int threads);

    // Before every use, by one thread.
    void begin() { taken = merged = 0; }

    // Where the results of one piece of a tile are kept, of one key/value head after the other.
    static int64_t row(const AttentionStep& step, const QueryTile& tile, int64_t kv_head, int64_t piece) {
        return tile.kept + (piece * step.kv_heads + kv_head) * tile.count * step.group();
    }

private:
    SoftmaxMemory memory;

    void add_items(const AttentionStep& step, int64_t index, int64_t kv_heads);
};

// Computes a planned step, with each thread of the team; it is done when all of them have returned.
// query [tokens][query heads][dim], `stride` numbers from token to token; out [tokens][query heads][dim].
template <typename T>
void attend(Team team, const AttentionStep& step, Plan& plan, const T* query, int64_t stride, const T* keys,
            const T* values, T* out);

}  // namespace octavo
