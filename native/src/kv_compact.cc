// Moving K and V from the slots of accepted nodes to the committed tail.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "forerun/kv_ops.h"

namespace forerun {
namespace {

using Move = std::pair<int64_t, int64_t>;  // target slot, source slot

// The moves that change something. Padded slot lists repeat a pair such as 0 <- 0, so equal pairs
// count once; two sources for one target have no answer.
std::vector<Move> distinct_moves(const IndexView& target, const IndexView& source,
                                 int64_t num_slots) {
  const char* remedy = "it is a slot of the pools";
  std::vector<Move> moves;
  moves.reserve(target.size());
  for (int64_t i = 0; i < target.size(); ++i) {
    moves.emplace_back(target.checked(i, 0, num_slots - 1, remedy),
                       source.checked(i, 0, num_slots - 1, remedy));
  }
  std::sort(moves.begin(), moves.end());
  moves.erase(std::unique(moves.begin(), moves.end()), moves.end());
  for (size_t i = 1; i < moves.size(); ++i) {
    if (moves[i].first == moves[i - 1].first) {
      throw std::invalid_argument(text(target.name(), " holds slot ", moves[i].first,
                                       " twice, from the slots ", moves[i - 1].second, " and ",
                                       moves[i].second, "; give each target one source"));
    }
  }
  moves.erase(std::remove_if(moves.begin(), moves.end(),
                             [](const Move& move) { return move.first == move.second; }),
              moves.end());
  return moves;
}

}  // namespace

void compact_kv(const std::vector<KvPool>& pools, const IndexView& target,
                const IndexView& source) {
  if (pools.empty()) return;
  const std::vector<Move> moves = distinct_moves(target, source, pools.front().num_slots);

  // All pools are read before any is written: targets overlap sources, and V may be a part of K.
  std::vector<std::byte> staged;
  size_t bytes = 0;
  for (const KvPool& pool : pools) bytes += moves.size() * pool.slot_bytes;
  staged.resize(bytes);
  std::byte* at = staged.data();
  for (const KvPool& pool : pools) {
    for (const Move& move : moves) {
      std::memcpy(at, pool.data + move.second * pool.slot_stride, pool.slot_bytes);
      at += pool.slot_bytes;
    }
  }
  at = staged.data();
  for (const KvPool& pool : pools) {
    for (const Move& move : moves) {
      std::memcpy(pool.data + move.first * pool.slot_stride, at, pool.slot_bytes);
      at += pool.slot_bytes;
    }
  }
}

}  // namespace forerun
