// Weights of a decoder-only transformer of the Llama family, packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "forerun/matrix_place.h"
#include "forerun/memory.h"
#include "forerun/packed.h"

namespace forerun {

struct ModelConfig {
  int vocab_rows;         // rows of the embedding
  int vocab_size;         // ids that may be predicted: 0 .. vocab_size - 1
  int hidden_size;        // a multiple of 16
  int intermediate_size;  // a multiple of 16
  int layers;
  int heads;
  int kv_heads;  // divides heads
  int head_dim;  // a multiple of 16
  float rms_norm_eps;
  bool tied;     // the head is the embedding
  bool qk_norm;  // RMS norm of each head of q and k before the rotation
  int window;    // sliding window of attention, 0: none

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
  int qkv_size() const { return q_size() + 2 * kv_size(); }
};

struct LayerWeights {
  std::uint16_t *qkv, *o, *gate_up, *down;  // packed; gate and up blocks alternate
  std::vector<float> attention_norm, mlp_norm, q_norm, k_norm;
  std::vector<float> qkv_bias, o_bias, gate_up_bias, down_bias;  // empty: none
};

// Owns the weights. They are filled row by row, so that a loader never holds
// more than it reads at once. Matrix names: "embedding", "head", and of a layer
// "q", "k", "v", "o", "gate", "up", "down". Vector names: "final_norm", and of
// a layer "attention_norm", "mlp_norm", "q_norm", "k_norm", and "q_bias" to
// "down_bias".
class Model {
 public:
  // Throws std::invalid_argument for an impossible configuration.
  explicit Model(const ModelConfig& config);

  const ModelConfig& config() const { return config_; }
  const LayerWeights& layer(int i) const { return layers_[i]; }
  const std::uint16_t* head() const { return head_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  std::size_t weight_bytes() const { return arena_.bytes(); }

  // Stores rows [first_row, first_row + rows) of a matrix, `columns` bfloat16
  // each. Throws std::invalid_argument for an unknown name or a wrong shape.
  void load_rows(const std::string& name, int layer, int first_row, const std::uint16_t* values,
                 int rows, int columns);
  // Stores a vector of bfloat16. Throws like load_rows.
  void load_vector(const std::string& name, int layer, const std::uint16_t* values, int size);
  // Throws std::invalid_argument, naming it, where a matrix or norm was not stored whole.
  void check_complete() const;

  // Writes the embedding of a token, hidden_size floats.
  void embed(int token, float* out) const;

 private:
  MatrixPlace place(const std::string& name, int layer) const;
  void check_layer(const std::string& name, int layer) const;

  ModelConfig config_;
  HugeBuffer arena_;
  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  std::uint16_t* head_ = nullptr;
  std::uint16_t* embedding_ = nullptr;  // row-major; null where tied
  std::size_t expected_values_ = 0, loaded_values_ = 0;
};

}  // namespace forerun
