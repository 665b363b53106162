// Checks of what a caller gives, and the texts of their errors.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "forerun/packed.h"

namespace forerun {

// The text of an error, joined from its parts.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream joined;
  (joined << ... << parts);
  return joined.str();
}

// Throws std::invalid_argument with the parts as its text, which are joined then alone.
template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) throw std::invalid_argument(text(parts...));
}

// The same with the text "NAME is VALUE; it must be RULE".
template <typename... Rule>
void require_value(bool holds, const char* name, long long value, const Rule&... rule) {
  require(holds, name, " is ", value, "; it must be ", rule...);
}

// For what is stored in blocks of 16.
inline void require_multiple(const char* name, int value) {
  require_value(value > 0 && value % kLanes == 0, name, value, "a multiple of ", kLanes);
}

}  // namespace forerun
