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

// The keys of an item that some query of the tile sees; they begin with a whole tile.
template <typename T>
Job<T> job_of(const AttentionStep& step, const Plan& plan, const Item& item, const T* keys, const T* values) {
    const QueryTile& tile = plan.tiles[item.tile];
    const bool whole = tile.kept == QueryTile::WHOLE;
    const int64_t first = (tile.first_piece + (whole ? 0 : item.piece)) * PIECE;
    const int64_t stop = step.position(tile.sequence, tile.first + tile.count - 1) + 1;
    const int64_t seen = std::max<int64_t>(0, step.position(tile.sequence, tile.first) + 1 - step.window);
    return {step, tile, item.kv_head, item.kv_heads, std::max(first, seen / KEYS * KEYS),
            whole ? stop : std::min(first + PIECE, stop), keys, values};
}

template <typename T>
void attend_whole(const Job<T>& job, const Job<T>* next, Workspace<T>& work, T* out) {
    for (int64_t begin = job.begin, end; begin < job.end; begin = end) {
        end = std::min((begin / PIECE + 1) * PIECE, job.end);
        if (begin == job.begin) {
            add_piece(job, next, work, work.total, begin, end);
        } else {
            add_piece(job, next, work, work.piece, begin, end);
            merge(work.total, work.piece, work.rows, work.width);
        }
    }
    for (int64_t row = 0; row < work.rows; ++row)
        write_out(work.total, row, work.width, work.dim,
                  place_of(job.step, job.tile, job.kv_head + row / job.rows(), row % job.rows(), out));
}

template <typename T>
void attend_item(const Job<T>& job, const Job<T>* next, const Plan& plan, int64_t piece, const T* query, int64_t stride,
                 T* out) {
    static thread_local Workspace<T> work;
    work.fit(job.step.dim, job.rows() * job.kv_heads);
    gather_queries(job, query, stride, work);
    if (job.tile.kept == QueryTile::WHOLE) return attend_whole(job, next, work, out);
    const int64_t row = Plan::row(job.step, job.tile, job.kv_head, piece);
    add_piece(job, next, work, plan.kept.from(row, work.width), job.begin, job.end);
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
void attend(Team team, const AttentionStep& step, Plan& plan, const T* query, int64_t stride, const T* keys,
            const T* values, T* out) {
    const auto items = static_cast<int64_t>(plan.items.size()), tiles = static_cast<int64_t>(plan.tiles.size());
    const auto job = [&](int64_t item) { return job_of(step, plan, plan.items[item], keys, values); };
    // A thread takes an item before it works on the one before: so it can ask for what the next one reads.
    for (int64_t item = plan.taken++; item < items;) {
        const int64_t following = plan.taken++;
        const int64_t piece = plan.items[item].piece;
        if (following < items) {
            const Job<T> next = job(following);
            attend_item(job(item), &next, plan, piece, query, stride, out);
        } else {
            attend_item<T>(job(item), nullptr, plan, piece, query, stride, out);
        }
        item = following;
    }
    if (!plan.cut_at_pieces) return;
    team.meet();
    for (int64_t index = plan.merged++; index < tiles * step.kv_heads; index = plan.merged++) {
        const QueryTile& tile = plan.tiles[index / step.kv_heads];
        if (tile.kept != QueryTile::WHOLE) merge_pieces(step, plan, tile, index % step.kv_heads, out);
    }
}

template <typename T>
void plan_and_attend(const AttentionStep& step, const T* query, int64_t stride, const T* keys, const T* values, T* out,
                     int threads) {
    static thread_local Plan plan_of_thread;  // its memory is used again in every layer
    Plan& plan = plan_of_thread;              // this thread's, for all threads
    plan.cut(step, threads);
    plan.begin();
    Meeting meeting;
#pragma omp parallel num_threads(threads)
    attend(Team::here(meeting), step, plan, query, stride, keys, values, out);
}

template void attend(Team, const AttentionStep&, Plan&, const float*, int64_t, const float*, const float*, float*);
template void attend(Team, const AttentionStep&, Plan&, const Bf16*, int64_t, const Bf16*, const Bf16*, Bf16*);

}  // namespace octavo

#define OCTAVO_ATTEND(TYPE, SUFFIX)                                                                              \
    extern "C" void octavo_attend_##SUFFIX(const octavo::AttentionStep* step, const TYPE* query, int64_t stride, \
                                           const TYPE* keys, const TYPE* values, TYPE* out, int threads) {       \
        octavo::plan_and_attend(*step, query, stride, keys, values, out, threads);                               \
    }

OCTAVO_ATTEND(float, float32)
OCTAVO_ATTEND(octavo::Bf16, bfloat16)
