// A model and a prompt in one flat file, for machines that have nothing else.
//
// Little endian, in this order: the line "forerun model 1\n"; int32 vocab_rows,
// vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads, head_dim,
// tied, qk_norm, window; float32 rms_norm_eps; int32 max_context; float32 cos and
// sin, [max_context, head_dim / 2] each; int32 number of prompt ids, the ids;
// int32 number of tensors; and of each tensor its native name in 24 bytes, int32
// layer, rows (0: a vector) and columns, and its bfloat16 values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "forerun/model.h"

namespace forerun {

struct ModelFile {
  std::shared_ptr<Model> model;
  std::vector<float> cos, sin;  // [max_context, head_dim / 2]
  int max_context;
  std::vector<std::int32_t> prompt;
};

// `swap_pairs`: a planted fault, the values of each pair of one matrix change places.
// Throws std::runtime_error for what is no such file.
ModelFile read_model_file(const std::string& path, bool swap_pairs);

}  // namespace forerun
