// Attention over a paged cache, read where it lies: for decodes, chunks of prompts, and both in one step.

#include "attention.h"

#include "attention_tile.h"

namespace octavo {
namespace {

// Where the output of a tile's row belongs.
template <typename T>
T* place_of(const AttentionStep& step, const QueryTile& tile, int64_t kv_head, int64_t row, T* out) {
    const int64_t token = step.starts[tile.sequence] + tile.first + row / step.group();
    return out + (token * step.query_heads + kv_head * step.group() + row % step.group()) * step.dim;
}

// The keys of a piece that some query of the tile sees; they begin with a whole tile.
template <typename T>
void add_piece_of(const Job<T>& job, Workspace<T>& work, Softmaxes to, int64_t piece) {
    const int64_t first = (job.tile.first_piece + piece) * PIECE;
    const int64_t seen = std::max<int64_t>(0, job.position(0) + 1 - job.step.window);
    const int64_t begin = std::max(first, seen / KEYS * KEYS);
    add_piece(job, work, to, begin, std::min(first + PIECE, job.last() + 1));
}

template <typename T>
void attend_whole(const Job<T>& job, Workspace<T>& work, T* out) {
    add_piece_of(job, work, work.total, 0);
    for (int64_t piece = 1; piece < job.tile.pieces; ++piece) {
        add_piece_of(job, work, work.piece, piece);
        merge(work.total, work.piece, work.rows, work.width);
    }
    for (int64_t row = 0; row < work.rows; ++row)
        write_out(work.total, row, work.width, work.dim,
                  place_of(job.step, job.tile, job.kv_head + row / job.rows(), row % job.rows(), out));
}

template <typename T>
void attend_item(const AttentionStep& step, const Plan& plan, const Item& item, const T* query, int64_t stride,
                 const T* keys, const T* values, T* out) {
    static thread_local Workspace<T> work;
    const QueryTile& tile = plan.tiles[item.tile];
    const Job<T> job{step, tile, item.kv_head, item.kv_heads, keys, values};
    work.fit(step.dim, job.rows() * job.kv_heads);
    gather_queries(job, query, stride, work);
    if (tile.kept == QueryTile::WHOLE) return attend_whole(job, work, out);
    const int64_t row = Plan::row(step, tile, item.kv_head, item.piece);
    add_piece_of(job, work, plan.kept.from(row, work.width), item.piece);
}

// The pieces of a tile that several threads computed, in the order in which one would have.
template <typename T>
void merge_pieces(const AttentionStep& step, const Plan& plan, const QueryTile& tile, int64_t kv_head, T* out) {
    const int64_t width = output_width(step.dim), rows = tile.count * step.group();
    const auto piece = [&](int64_t index) { return plan.kept.from(Plan::row(step, tile, kv_head, index), width); };
    for (int64_t index = 1; index < tile.pieces; ++index) merge(piece(0), piece(index), rows, width);
    for (int64_t row = 0; row < rows; ++row)
        write_out(piece(0), row, width, step.dim, place_of(step, tile, kv_head, row, out));
}

}  // namespace

template <typename T>
void attend(const AttentionStep& step, const Plan& plan, const T* query, int64_t stride, const T* keys, const T* values,
            T* out) {
    const auto items = static_cast<int64_t>(plan.items.size()), tiles = static_cast<int64_t>(plan.tiles.size());
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < items; ++item)
        attend_item(step, plan, plan.items[item], query, stride, keys, values, out);
#pragma omp for schedule(dynamic)
    for (int64_t index = 0; index < tiles * step.kv_heads; ++index) {
        const QueryTile& tile = plan.tiles[index / step.kv_heads];
        if (tile.kept != QueryTile::WHOLE) merge_pieces(step, plan, tile, index % step.kv_heads, out);
    }
}

template <typename T>
void plan_and_attend(const AttentionStep& step, const T* query, int64_t stride, const T* keys, const T* values, T* out,
                     int threads) {
    static thread_local Plan plan_of_thread;  // its memory is used again in every layer
    Plan& plan = plan_of_thread;              // this thread's, for all threads
    plan.cut(step, output_width(step.dim), threads);
#pragma omp parallel num_threads(threads)
    attend(step, plan, query, stride, keys, values, out);
}

template void attend(const AttentionStep&, const Plan&, const float*, int64_t, const float*, const float*, float*);
template void attend(const AttentionStep&, const Plan&, const Bf16*, int64_t, const Bf16*, const Bf16*, Bf16*);

}  // namespace octavo

#define OCTAVO_ATTEND(TYPE, SUFFIX)                                                                              \
    extern "C" void octavo_attend_##SUFFIX(const octavo::AttentionStep* step, const TYPE* query, int64_t stride, \
                                           const TYPE* keys, const TYPE* values, TYPE* out, int threads) {       \
        octavo::plan_and_attend(*step, query, stride, keys, values, out, threads);                               \
    }

OCTAVO_ATTEND(float, float32)
OCTAVO_ATTEND(octavo::Bf16, bfloat16)
