// A draft head: one decoder layer over the target's hidden states, with a KV cache
// of its own and a draft vocabulary. EAGLE-3 (arXiv:2503.01840), EAGLE-1 and -2
// (arXiv:2401.15077, 2406.16858) and the multi-token prediction layers that some
// models bring (arXiv:2412.19437) differ in what goes into the layer.
//
// The row of position p takes the target's hidden states at p and the embedding
// of token p + 1, and predicts token p + 2. Rows of committed tokens are kept;
// while a tree grows, a node's row takes its parent's own output for the hidden
// states that the target has not computed yet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "forerun/attention.h"
#include "forerun/block_shares.h"
#include "forerun/draft_tree.h"
#include "forerun/forward.h"
#include "forerun/kernels.h"
#include "forerun/kv_cache.h"
#include "forerun/matrix_place.h"
#include "forerun/thread_pool.h"

namespace forerun {

struct HeadConfig {
  int feature_size;       // taps x hidden size of the target; a multiple of 16
  int hidden_size;        // a multiple of 16
  int intermediate_size;  // a multiple of 16
  int heads;
  int kv_heads;    // divides heads
  int head_dim;    // a multiple of 16
  int vocab_rows;  // rows of the embedding
  int draft_vocab;
  float rms_norm_eps;
  // How the layer's input is made of e, the embedding, and f, the hidden states.
  // false: g = fc f, once for a committed row, and the layer takes norm(e), norm(g)
  // side by side, beside the residual g (EAGLE-3). true: g = fc [e, f], for every
  // row, and the layer takes g.
  bool fused;
  // Whether what a node's row passes on to its children went through the final norm.
  bool passes_norm;
  // Whether the residual of a layer that is not fused is norm(g), instead of g.
  bool normed_residual;

  int layer_input() const { return fused ? hidden_size : 2 * hidden_size; }
  int fc_input() const { return fused ? 2 * hidden_size : feature_size; }
  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
  int qkv_size() const { return q_size() + 2 * kv_size(); }
};

// Owns the weights, filled row by row. Matrices: "fc" [hidden, fc_input], "q", "k", "v"
// [.., layer_input], "o", "gate", "up", "down", "head" [draft_vocab, hidden], "embedding"
// [vocab_rows, hidden]. Vectors: the norms "embedding_norm", "hidden_norm" (of g, or of f where
// they are fused), "layer_norm" (of a fused g), "mlp_norm" and "final_norm", and "fc_bias",
// "q_bias", "k_bias", "v_bias". A vector that was not loaded does nothing; "mlp_norm" must be.
class HeadWeights {
 public:
  // Throws std::invalid_argument for an impossible configuration, or draft ids that are not
  // draft_vocab tokens of the vocabulary.
  HeadWeights(const HeadConfig& config, std::vector<std::int32_t> draft_ids);

  // Both throw std::invalid_argument for an unknown name or a wrong shape.
  void load_rows(const std::string& name, int first_row, const std::uint16_t* values, int rows,
                 int columns);
  void load_vector(const std::string& name, const std::uint16_t* values, int size);
  // Throws std::invalid_argument where a matrix or norm was not stored whole.
  void check_complete() const;

  const HeadConfig& config() const { return config_; }
  std::size_t weight_bytes() const { return arena_.bytes(); }
  std::int32_t target_id(int draft_id) const { return draft_ids_[draft_id]; }
  void embed(int token, float* out) const;

  // Packed; gate and up blocks alternate.
  std::uint16_t *fc, *qkv, *o, *gate_up, *down, *head;
  // Empty: none.
  std::vector<float> embedding_norm, hidden_norm, layer_norm, mlp_norm, final_norm;
  std::vector<float> fc_bias, qkv_bias;

 private:
  struct Matrix {
    std::string name;
    MatrixPlace place;
    int loaded = 0;  // rows
  };

  HeadConfig config_;
  std::vector<std::int32_t> draft_ids_;
  HugeBuffer arena_;
  std::uint16_t* embedding_;  // row-major
  std::vector<Matrix> matrices_;
};

// One session's part of a round: committed rows that the cache lacks, then a tree.
struct HeadRows {
  int cached;                     // rows in the cache
  int rows;                       // new ones, at least 1
  const std::uint16_t* features;  // [rows, feature_size], bfloat16
  const std::int32_t* tokens;     // [rows]: of a row at position p, token p + 1
  const std::int32_t* pages;
  int num_pages;
  DraftLimits limits;  // nodes 0: the rows are cached and nothing is drafted
};

class DraftHead {
 public:
  // config: max_rows are those of one pass. top_k: children of a node at most.
  // cos and sin: [max_context, head_dim / 2] each. Throws std::invalid_argument
  // for an impossible configuration.
  DraftHead(std::shared_ptr<const HeadWeights> weights, const ForwardConfig& config, int top_k,
            const float* cos, const float* sin);

  // Caches the new rows of all sessions, then grows one tree a session, one
  // pass a depth for all of them, until nothing promising is left or the next
  // pass would end later than `seconds` from the call. The trees hold the best
  // nodes. Throws std::invalid_argument for rows, tokens or pages out of range.
  std::vector<DraftTree> draft(const std::vector<HeadRows>& batch, double seconds);

  const HeadWeights& weights() const { return *weights_; }

 private:
  struct Predicted {
    int row;      // of the pass, before those that predict nothing are left out
    int session;  // of the batch
    int node;     // whose children it gives, -1: the root's
  };

  void check(const std::vector<HeadRows>& batch) const;
  void plan_committed(const std::vector<HeadRows>& batch);
  void plan_nodes(const std::vector<HeadRows>& batch, std::vector<DraftTree>& trees);
  void clear_plan();
  void add_row(int position, std::int32_t token, std::int32_t slot);
  void run_pass(std::vector<DraftTree>& trees);
  void take_features(int thread);
  void join(int thread);
  void cache(int thread);
  void leave_out(int thread);
  void attend(int thread);
  void predict(int thread);
  void top(const float* probabilities, float sum, std::vector<std::pair<float, int>>& best) const;
  void norm(int thread, const float* x, const std::vector<float>& weight, void* act);
  void gemm(int thread, const std::uint16_t* w, int n, int k, const void* a, std::size_t lda,
            int rows, const std::vector<float>& bias, Epilogue epilogue, float* c, std::size_t ldc,
            void* act);
  // Calls f(i) for the thread's share of `count` rows.
  template <class F>
  void for_rows(int thread, int count, const F& f) const {
    for (int i = thread; i < count; i += pool_.size()) f(i);
  }
  void* act(int row) const;
  float* scratch(int thread) const;
  int rows() const { return static_cast<int>(positions_.size()); }
  int asking() const { return static_cast<int>(asking_.size()); }

  std::shared_ptr<const HeadWeights> weights_;
  const ForwardConfig config_;
  const int top_k_;
  const Kernels& kernels_;
  KvCache cache_;
  ThreadPool pool_;
  BlockShares shares_;
  Attention attention_;
  std::vector<float> cos_, sin_;

  // The plan of one pass. All rows leave keys and values in the cache; features_: hidden states of
  // the target, of committed rows. Those that predict something go on from there, the others end.
  std::vector<const std::uint16_t*> features_;
  std::vector<std::int32_t> positions_, tokens_, slots_;
  std::vector<AttentionSequence> sequences_;
  std::vector<AttentionRow> asking_;
  std::vector<std::int32_t> paths_;
  std::vector<Predicted> predicted_;                          // of the rows that go on
  std::vector<std::vector<std::pair<float, int>>> children_;  // of each predicted row

  // Outputs of the rows that went through the head this round, by session.
  std::vector<std::vector<float>> outputs_;

  std::vector<std::vector<float>> embeddings_;  // one a thread
  HugeBuffer x_, qkv_, scratch_, act_, wide_, logits_;
  std::size_t ld_act_, ld_logits_;
};

}  // namespace forerun
