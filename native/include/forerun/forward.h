// The whole forward: embedding to argmax, all layers, all new rows of all
// sequences in one parallel region.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "forerun/attention.h"
#include "forerun/block_shares.h"
#include "forerun/kernels.h"
#include "forerun/kv_cache.h"
#include "forerun/model.h"
#include "forerun/thread_pool.h"

namespace forerun {

// New rows of one sequence. Both lengths are made in one place by the caller;
// positions, paths and slots all follow from them.
struct NewRows {
  int length;  // committed tokens in the cache plus the new rows
  int rows;    // new rows, at least 1
  const std::int32_t* pages;
  int num_pages;
  const std::int32_t* tokens;   // [rows]
  const std::int32_t* parents;  // [rows], parents[0] = -1, parents[i] < i; null: a chain
  int first_predicted;          // rows from here on are predicted; `rows`: none
};

struct ForwardOut {
  // Of the predicted rows, in order; -1 where no logit is a number.
  std::vector<std::int32_t> predictions;
  std::vector<std::uint16_t> hidden;  // [taps, rows, hidden_size], bfloat16
};

struct ForwardConfig {
  bool bf16;  // precision of activations and KV; else float32
  int page_size, pages;
  int max_rows;     // of one forward
  int max_context;  // positions
  int threads;
  std::vector<int> cpus;  // to pin to, or empty
  std::string isa;
};

class Engine {
 public:
  // rotations: cos then sin, [max_context, head_dim / 2] each.
  // Throws std::invalid_argument for an impossible configuration.
  Engine(std::shared_ptr<const Model> model, const ForwardConfig& config, const float* cos,
         const float* sin);

  // Runs all rows. `taps`: hidden states to return for every row: the residual
  // stream entering layer i, or after the final norm for i = layers.
  // Throws std::invalid_argument for rows, lengths, tokens, parents or pages out of range.
  void forward(const std::vector<NewRows>& batch, const std::vector<int>& taps, ForwardOut& out);

  // Moves the KV of new rows `rows` (ascending, i <= rows[i]) behind the prefix.
  void compact(const std::int32_t* pages, int num_pages, int prefix, const std::int32_t* rows,
               int count);

  const Model& model() const { return *model_; }
  KvCache& cache() { return cache_; }
  const ForwardConfig& config() const { return config_; }

 private:
  void check(const std::vector<NewRows>& batch, const std::vector<int>& taps) const;
  void plan(const std::vector<NewRows>& batch);
  void work(int thread, const std::vector<int>& taps, ForwardOut& out);
  void gemm(int thread, const std::uint16_t* w, int n, int k, const void* a, std::size_t lda,
            int rows, const std::vector<float>& bias, Epilogue epilogue, float* c, void* act);
  void argmax(int thread);
  void rotate_and_store(int thread, int layer);
  void tap(int thread, int index, const float* x, ForwardOut& out) const;
  void norm(int thread, const std::vector<float>& weight, bool predicted_rows_only);
  int rows() const { return static_cast<int>(tokens_.size()); }

  std::shared_ptr<const Model> model_;
  const ForwardConfig config_;
  const Kernels& kernels_;
  KvCache cache_;
  ThreadPool pool_;
  BlockShares shares_;
  Attention attention_;
  std::vector<float> cos_, sin_;

  // The plan of one forward.
  std::vector<AttentionSequence> sequences_;
  std::vector<AttentionRow> rows_;
  std::vector<std::int32_t> tokens_, slots_, paths_, predicted_;

  // Activations, one row a new row.
  HugeBuffer x_, qkv_, normed_, act_, wide_;
  std::size_t ld_act_, ld_wide_;
  std::vector<std::vector<float>> best_;  // by thread
  std::vector<std::vector<std::int32_t>> best_id_;
};

}  // namespace forerun
