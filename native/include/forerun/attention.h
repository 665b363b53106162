// Extend attention over the paged cache, for new rows of many sequences.
//
// A new row attends to the committed prefix of its sequence and to the new rows
// on its own path: in a chain all rows up to itself, in a tree its ancestors and
// itself. Its keys are taken in the order of their positions whatever slots they
// lie in, and the softmax is cut at fixed positions (ranges), so a row's result
// has the same bits whether its ancestors are nodes of this call or committed
// tokens, whatever else the call holds, and whatever the page size.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "forerun/kernels.h"
#include "forerun/kv_cache.h"

namespace forerun {

// New rows of one sequence. Storage index i (0 based, committed tokens first,
// then the new rows as they came) lies in page pages[i / page_size].
struct AttentionSequence {
  int prefix;  // committed tokens in the cache
  int first;   // its first row in the call
  int rows;
  const std::int32_t* pages;
  int earlier = 0;  // new rows of earlier calls, which lie between the prefix and those of this one

  int stored() const { return prefix + earlier + rows; }
};

struct AttentionRow {
  int sequence;
  int position;  // prefix + depth
  // New rows it sees, those of earlier calls counted first, one a depth, itself last; null: a
  // chain.
  const std::int32_t* path;
};

struct AttentionConfig {
  int heads;
  float scale;
  float cap;   // logit cap, 0: none
  int window;  // positions that a row sees, itself included; 0: all
};

class Attention {
 public:
  Attention(const Kernels& kernels, const KvCache& cache, const AttentionConfig& config,
            int threads);

  // Plans one forward; the spans must outlive it.
  void plan(const std::vector<AttentionSequence>& sequences, const std::vector<AttentionRow>& rows);

  // In a parallel region: all threads call compute, meet at a barrier, then call
  // merge. q: [rows, heads * head_dim] with ldq elements between rows, rotated.
  void compute(int layer, int thread, const float* q, std::size_t ldq);
  // Writes [rows, heads * head_dim] in the precision of activations.
  void merge(int thread, void* act, std::size_t ld_act) const;
  // The same in float32.
  void merge_float(int thread, float* out, std::size_t ld_out) const;

 private:
  struct Tile {
    int sequence, first, rows;
  };
  struct Task {
    int tile, head, range;
  };
  struct Scratch {
    std::vector<float> q, s, tree, o;
    std::vector<unsigned char> unit;
    std::vector<const void*> units;
    std::vector<std::int32_t> lanes;
    std::vector<int> rows;
  };

  int first_position(int position) const;
  float* partial(int row, int head, int range) const;
  void run(const Task& task, int layer, Scratch& scratch, const float* q, std::size_t ldq);
  void score(const AttentionSequence& seq, int layer, int head, int from_unit, int to_unit,
             int last, const float* q, int rows, float* out, std::size_t ld_out,
             Scratch& scratch) const;
  void fetch_values(const AttentionSequence& seq, int layer, int head, int from_unit,
                    int to_unit) const;
  template <class Store>
  void merge_rows(int thread, Store store) const;

  const Kernels& kernels_;
  const KvCache& cache_;
  const AttentionConfig config_;
  const int threads_, group_, tile_rows_;
  const std::vector<AttentionSequence>* sequences_ = nullptr;
  const std::vector<AttentionRow>* rows_ = nullptr;
  std::vector<Tile> tiles_;
  std::vector<Task> tasks_;
  std::vector<std::size_t> row_partials_;  // first partial of a row
  mutable std::vector<float> partials_;    // max, sum and output by row, head and range
  std::vector<std::atomic<int>> next_;     // next task, by layer
  mutable std::vector<Scratch> scratch_;   // one a thread
};

}  // namespace forerun
