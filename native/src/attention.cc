#include "forerun/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace forerun {
namespace {

constexpr int kRange = 256;       // positions whose softmax is taken at once
constexpr int kTileQueries = 64;  // query rows that share one read of the keys

}  // namespace

Attention::Attention(const Kernels& kernels, const KvCache& cache, const AttentionConfig& config,
                     int threads)
    : kernels_(kernels),
      cache_(cache),
      config_(config),
      threads_(threads),
      group_(config.heads / cache.geometry().kv_heads),
      tile_rows_(std::max(1, kTileQueries / group_)),
      next_(cache.geometry().layers),
      scratch_(threads) {
  const int queries = tile_rows_ * group_, d = cache.geometry().head_dim;
  for (Scratch& s : scratch_) {
    s.q.resize(static_cast<std::size_t>(queries) * d);
    s.s.resize(static_cast<std::size_t>(queries) * kRange);
    s.o.resize(static_cast<std::size_t>(queries) * d);
    s.unit.resize(cache.geometry().unit_bytes());
    s.units.resize(std::max(kRange, d / kLanes));
    s.lanes.resize(kRange);
    s.rows.resize(tile_rows_);
  }
}

int Attention::first_position(int position) const {
  return config_.window > 0 ? std::max(0, position - config_.window + 1) : 0;
}

float* Attention::partial(int row, int head, int range) const {
  const AttentionRow& r = (*rows_)[row];
  const int first = first_position(r.position) / kRange, ranges = r.position / kRange - first + 1;
  const std::size_t index =
      row_partials_[row] + static_cast<std::size_t>(head) * ranges + (range - first);
  return partials_.data() + index * (cache_.geometry().head_dim + 2);
}

void Attention::plan(const std::vector<AttentionSequence>& sequences,
                     const std::vector<AttentionRow>& rows) {
  sequences_ = &sequences;
  rows_ = &rows;
  tiles_.clear();
  tasks_.clear();
  row_partials_.clear();
  std::size_t partials = 0;
  for (const AttentionRow& row : rows) {
    row_partials_.push_back(partials);
    partials += static_cast<std::size_t>(config_.heads) *
                (row.position / kRange - first_position(row.position) / kRange + 1);
  }
  const std::size_t floats = partials * (cache_.geometry().head_dim + 2);
  if (partials_.size() < floats) partials_.resize(floats);
  int max_tree = 0;
  for (int s = 0; s < static_cast<int>(sequences.size()); ++s) {
    const AttentionSequence& seq = sequences[s];
    max_tree = std::max(max_tree, seq.earlier + seq.rows);
    for (int first = seq.first; first < seq.first + seq.rows; first += tile_rows_) {
      tiles_.push_back({s, first, std::min(tile_rows_, seq.first + seq.rows - first)});
      int low = std::numeric_limits<int>::max(), high = 0;
      for (int r = first; r < first + tiles_.back().rows; ++r) {
        low = std::min(low, first_position(rows[r].position) / kRange);
        high = std::max(high, rows[r].position / kRange);
      }
      for (int head = 0; head < cache_.geometry().kv_heads; ++head) {
        for (int range = low; range <= high; ++range) {
          tasks_.push_back({static_cast<int>(tiles_.size()) - 1, head, range});
        }
      }
    }
  }
  const std::size_t tree =
      static_cast<std::size_t>(tile_rows_) * group_ * (round_up(max_tree, kLanes) + kLanes);
  for (Scratch& s : scratch_) {
    if (s.tree.size() < tree) s.tree.resize(tree);
  }
  for (std::atomic<int>& next : next_) next.store(0, std::memory_order_relaxed);
}

void Attention::compute(int layer, int thread, const float* q, std::size_t ldq) {
  const int tasks = static_cast<int>(tasks_.size());
  for (int t; (t = next_[layer].fetch_add(1, std::memory_order_relaxed)) < tasks;) {
    run(tasks_[t], layer, scratch_[thread], q, ldq);
  }
}

// Scores of the storage units [from_unit, to_unit); indices from `last` on may
// be unwritten, and their scores are not used. A score is a product of its own
// query and key alone, so the other lanes of a unit do not matter.
void Attention::score(const AttentionSequence& seq, int layer, int head, int from_unit, int to_unit,
                      int last, const float* q, int rows, float* out, std::size_t ld_out,
                      Scratch& scratch) const {
  const int d = cache_.geometry().head_dim;
  Panel panel{q, static_cast<std::size_t>(d), rows, scratch.units.data(), 0, d, out, ld_out, 0};
  if (cache_.aligned()) {
    for (int u = from_unit; u < to_unit; ++u) {
      scratch.units[panel.num_blocks++] =
          cache_.keys(layer, cache_.slot(seq.pages, u * kLanes) / kLanes, head);
    }
    panel.to_next = cache_.to_values();
    kernels_.panel(panel);
    return;
  }
  panel.num_blocks = 1;
  scratch.units[0] = scratch.unit.data();
  for (int u = from_unit; u < to_unit; ++u) {
    for (int lane = 0; lane < kLanes && u * kLanes + lane < last; ++lane) {
      cache_.gather_key(layer, cache_.slot(seq.pages, u * kLanes + lane), head, lane,
                        scratch.unit.data());
    }
    panel.c = out + static_cast<std::size_t>(u - from_unit) * kLanes;
    kernels_.panel(panel);
  }
}

// Asks for the first block of the values of the storage units [from_unit, to_unit).
void Attention::fetch_values(const AttentionSequence& seq, int layer, int head, int from_unit,
                             int to_unit) const {
  constexpr std::size_t kLine = 64;
  const KvGeometry& g = cache_.geometry();
  const std::size_t block_bytes = std::size_t{kLanes} * kLanes * g.element_bytes();
  for (int u = from_unit; u < to_unit; ++u) {
    const auto* unit = static_cast<const unsigned char*>(
        cache_.values(layer, cache_.slot(seq.pages, u * kLanes) / kLanes, head));
    for (std::size_t byte = 0; byte < block_bytes; byte += kLine)
      __builtin_prefetch(unit + byte, 0, 2);
  }
}

void Attention::run(const Task& task, int layer, Scratch& scratch, const float* q,
                    std::size_t ldq) {
  const Tile& tile = tiles_[task.tile];
  const AttentionSequence& seq = (*sequences_)[tile.sequence];
  const std::vector<AttentionRow>& all = *rows_;
  const int d = cache_.geometry().head_dim, start = task.range * kRange, end = start + kRange;

  // The rows that see a part of this range, and how far they see.
  int count = 0, nearest = end, farthest = start;
  for (int r = tile.first; r < tile.first + tile.rows; ++r) {
    if (all[r].position < start || first_position(all[r].position) >= end) continue;
    scratch.rows[count++] = r;
    nearest = std::min(nearest, all[r].position + 1);
    farthest = std::max(farthest, std::min(end, all[r].position + 1));
  }
  if (count == 0) return;
  const bool tree = all[tile.first].path != nullptr;
  const int queries = count * group_;
  for (int i = 0; i < count; ++i) {
    const float* from =
        q + scratch.rows[i] * ldq + static_cast<std::size_t>(task.head) * group_ * d;
    kernels_.to_kv(from, group_ * d, scratch.q.data() + static_cast<std::size_t>(i) * group_ * d);
  }

  // Scores: storage index and position agree in the prefix, and in a chain everywhere.
  float* s = scratch.s.data();
  const int direct_end = tree ? std::min(seq.prefix, farthest) : farthest;
  const int stored = seq.stored();
  if (direct_end > start) {
    score(seq, layer, task.head, start / kLanes, (direct_end + kLanes - 1) / kLanes, stored,
          scratch.q.data(), queries, s, kRange, scratch);
  }
  if (tree && farthest > seq.prefix) {
    // All nodes at once, then each row picks its own path.
    const int from = seq.prefix / kLanes, to = (stored + kLanes - 1) / kLanes;
    const std::size_t width = static_cast<std::size_t>(to - from) * kLanes;
    score(seq, layer, task.head, from, to, stored, scratch.q.data(), queries, scratch.tree.data(),
          width, scratch);
    for (int i = 0; i < queries; ++i) {
      const AttentionRow& row = all[scratch.rows[i / group_]];
      const int last = std::min(end, row.position + 1);
      for (int p = std::max(start, seq.prefix); p < last; ++p) {
        s[static_cast<std::size_t>(i) * kRange + (p - start)] =
            scratch.tree[i * width + (seq.prefix % kLanes + row.path[p - seq.prefix])];
      }
    }
  }

  const int together = tree ? std::min(seq.prefix, nearest) : nearest;
  const int units = cache_.aligned() ? std::max(0, together - start) / kLanes : 0;
  for (int i = 0; i < queries; ++i) {
    // The softmax reads no memory: time for what the values begin with.
    const int unit = start / kLanes;
    fetch_values(seq, layer, task.head, unit + units * i / queries,
                 unit + units * (i + 1) / queries);
    const int row = scratch.rows[i / group_], position = all[row].position;
    Softmax softmax{s + static_cast<std::size_t>(i) * kRange,
                    std::min(end, position + 1) - start,
                    std::max(0, first_position(position) - start),
                    config_.scale,
                    config_.cap,
                    0,
                    0};
    kernels_.softmax(softmax);
    float* out = partial(row, task.head * group_ + i % group_, task.range);
    out[0] = softmax.max;
    out[1] = softmax.sum;
  }

  // Values: whole steps that every row sees, by all rows together; then each row's own rest.
  float* o = scratch.o.data();
  std::fill(o, o + static_cast<std::size_t>(queries) * d, 0.0f);
  const auto add = [&](const AttentionRow& row, int from, int to, int first, int rows) {
    int keys = 0;
    for (int p = from; p < to;) {
      const bool node = tree && p >= seq.prefix;
      const int slot = cache_.slot(seq.pages, node ? seq.prefix + row.path[p - seq.prefix] : p);
      const void* unit = cache_.values(layer, slot / kLanes, task.head);
      // Before the tree, and where pages are whole units, lanes follow the positions.
      const int stop = tree ? std::min(to, seq.prefix) : to;
      const int run = node || !cache_.aligned() ? 1 : std::min(kLanes - p % kLanes, stop - p);
      for (int i = 0; i < run; ++i, ++keys) {
        scratch.units[keys] = unit;
        scratch.lanes[keys] = slot % kLanes + i;
      }
      p += run;
    }
    kernels_.value_rows({s + static_cast<std::size_t>(first) * kRange + (from - start), kRange,
                         rows, scratch.units.data(), scratch.lanes.data(), keys, d,
                         o + static_cast<std::size_t>(first) * d, static_cast<std::size_t>(d)});
  };
  const int rest = std::max(start, together / kernels_.value_step * kernels_.value_step);
  if (rest > start) add(all[scratch.rows[0]], start, rest, 0, queries);
  for (int i = 0; i < count; ++i) {
    const AttentionRow& row = all[scratch.rows[i]];
    const int last = std::min(end, row.position + 1);
    if (last > rest) add(row, rest, last, i * group_, group_);
  }
  for (int i = 0; i < queries; ++i) {
    float* out = partial(scratch.rows[i / group_], task.head * group_ + i % group_, task.range);
    std::copy(o + static_cast<std::size_t>(i) * d, o + static_cast<std::size_t>(i + 1) * d,
              out + 2);
  }
}

template <class Store>
void Attention::merge_rows(int thread, Store store) const {
  const int d = cache_.geometry().head_dim;
  const int items = static_cast<int>(rows_->size()) * config_.heads;
  std::vector<float>& o = scratch_[thread].o;
  for (int item = items * thread / threads_; item < items * (thread + 1) / threads_; ++item) {
    const int row = item / config_.heads, head = item % config_.heads;
    const int position = (*rows_)[row].position;
    const int first = first_position(position) / kRange, last = position / kRange;
    float max = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int range = first; range <= last; ++range)
      max = std::max(max, partial(row, head, range)[0]);
    std::fill(o.begin(), o.begin() + d, 0.0f);
    for (int range = first; range <= last; ++range) {
      const float* part = partial(row, head, range);
      if (part[1] == 0) continue;  // nothing visible
      const float weight = std::exp(part[0] - max);
      sum += part[1] * weight;
      for (int i = 0; i < d; ++i) o[i] += part[2 + i] * weight;
    }
    if (sum > 0) {
      for (int i = 0; i < d; ++i) o[i] /= sum;
    }
    store(row, head, o.data());
  }
}

void Attention::merge(int thread, void* act, std::size_t ld_act) const {
  const int d = cache_.geometry().head_dim;
  merge_rows(thread, [&](int row, int head, const float* o) {
    kernels_.to_act(o, d,
                    static_cast<unsigned char*>(act) +
                        (row * ld_act + static_cast<std::size_t>(head) * d) * kernels_.act_bytes);
  });
}

void Attention::merge_float(int thread, float* out, std::size_t ld_out) const {
  const int d = cache_.geometry().head_dim;
  merge_rows(thread, [&](int row, int head, const float* o) {
    std::copy(o, o + d, out + row * ld_out + static_cast<std::size_t>(head) * d);
  });
}

}  // namespace forerun
