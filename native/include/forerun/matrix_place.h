// Where the rows of one weight matrix are stored.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "forerun/packed.h"
#include "forerun/require.h"

namespace forerun {

// Row r is lane r % 16 of block first_block + r / 16 * block_stride from `base` on, so that
// matrices may alternate or follow one another; or row r of a row-major matrix, for stride 0.
struct MatrixPlace {
  std::uint16_t* base;
  int rows, columns;
  int first_block = 0, block_stride = 1;

  // Throws std::invalid_argument, naming the matrix, unless rows [first_row, first_row +
  // num_rows) of num_columns values each are some of its own.
  void check(const std::string& name, int first_row, int num_rows, int num_columns) const {
    require(num_columns == columns, "matrix '", name, "' has ", num_columns,
            " columns; it must have ", columns);
    require(first_row >= 0 && num_rows >= 0 && first_row <= rows - num_rows, "matrix '", name,
            "' has rows up to ", first_row + num_rows, "; it must have ", rows);
  }

  // Stores rows that were checked, bfloat16 [num_rows, columns].
  void store(int first_row, const std::uint16_t* values, int num_rows) const {
    const auto width = static_cast<std::size_t>(columns);
    if (block_stride == 0) {
      std::copy(values, values + num_rows * width, base + first_row * width);
      return;
    }
    for (int row = first_row; row < first_row + num_rows; ++row, values += width) {
      const auto block = static_cast<std::size_t>(first_block + row / kLanes * block_stride);
      pack_row(values, columns, row % kLanes, base + block * kLanes * width);
    }
  }
};

}  // namespace forerun
