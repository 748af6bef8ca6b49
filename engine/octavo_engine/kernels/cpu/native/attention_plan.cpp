#include "attention.h"

namespace octavo {
namespace {

// What a tile costs for one key/value head, in keys x rows.
int64_t cost(const AttentionStep& step, const QueryTile& tile) {
    return tile.pieces * PIECE * (tile.count * step.group() + ROWS_OF_A_FETCH);
}

void add_tiles(const AttentionStep& step, int64_t sequence, std::vector<QueryTile>& tiles) {
    const int64_t most = std::max<int64_t>(1, QUERY_ROWS / step.group()), queries = step.queries(sequence);
    const int64_t count = (queries + most - 1) / most;
    for (int64_t index = count - 1; index >= 0; --index) {  // the last of a prompt see most
        const int64_t first = queries * index / count, end = queries * (index + 1) / count;
        const int64_t from = std::max<int64_t>(0, step.position(sequence, first) + 1 - step.window) / PIECE;
        const int64_t pieces = step.position(sequence, end - 1) / PIECE + 1 - from;
        tiles.push_back({sequence, first, end - first, from, pieces});
    }
}

// The heads of a token lie side by side, so they are read together where there is other work to share out, and where a
// thread has room for their sums.
int64_t heads_together(const AttentionStep& step, const QueryTile& tile, int64_t pieces_of_step, int threads) {
    const bool fit = tile.count * step.query_heads <= QUERY_ROWS;
    return fit && (threads == 1 || pieces_of_step >= threads * ITEMS_A_THREAD) ? step.kv_heads : 1;
}

}  // namespace

void Plan::add_items(const AttentionStep& step, int64_t index, int64_t kv_heads) {
    const bool whole = tiles[index].kept == QueryTile::WHOLE;
    const int64_t first = whole ? QueryTile::ALL_PIECES : 0, end = whole ? 0 : tiles[index].pieces;
    for (int64_t kv_head = 0; kv_head < step.kv_heads; kv_head += kv_heads)
        for (int64_t piece = first; piece < end; ++piece) items.push_back({index, kv_head, kv_heads, piece});
}

void Plan::cut(const AttentionStep& step, int threads) {
    tiles.clear(), items.clear();
    for (int64_t sequence = step.sequences - 1; sequence >= 0; --sequence) add_tiles(step, sequence, tiles);
    int64_t costs = 0, pieces = 0, rows = 0;
    for (const QueryTile& tile : tiles) costs += cost(step, tile), pieces += tile.pieces;
    for (int64_t index = 0; index < static_cast<int64_t>(tiles.size()); ++index) {
        QueryTile& tile = tiles[index];
        const int64_t heads = heads_together(step, tile, pieces, threads);
        const int64_t share = costs * step.kv_heads / (threads * ITEMS_A_THREAD);
        if (threads > 1 && tile.pieces > 1 && cost(step, tile) * heads > share) {
            tile.kept = rows;
            rows += tile.pieces * tile.count * step.query_heads;
        }
        add_items(step, index, heads);
    }
    kept = memory.fit(rows, output_width(step.dim));
    cut_at_pieces = rows > 0;
}

}  // namespace octavo
