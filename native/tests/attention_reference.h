// Attention as a formula, in double: what all levels are held against.
#pragma once

#include <vector>

namespace forerun {

// One query row of one head over the positions that it sees, in their order.
struct ReferenceRow {
  const float* q;                    // [d], in the precision of the cache
  std::vector<const float*> keys;    // [positions][d], likewise
  std::vector<const float*> values;  // [positions][d], likewise
  int d;
  float scale, cap;  // cap 0: none
  int window;        // 0: all
  // The weights of each range of 256 positions, relative to its largest, are
  // rounded to bfloat16 before they meet the values; their sum is not rounded.
  bool rounds_weights;
};

// out: [d]. slack: [d], how far a result may be from it because a weight lies so
// close to the middle of two bfloat16 numbers that the last bits of its score
// decide to which it is rounded.
void attention_reference(const ReferenceRow& row, std::vector<double>& out,
                         std::vector<double>& slack);

}  // namespace forerun
