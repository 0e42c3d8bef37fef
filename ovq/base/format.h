// Numbers as people read them. Bytes are decimal everywhere: 1 kB = 1000 bytes.
#pragma once

#include <string>
#include <vector>

namespace ovq {

std::string bytes_text(double bytes);                       // 512 B, 1.5 MB, 34 MB
std::string seconds_text(double seconds);                   // how long something takes: 1.234 s, 5.67 ms, 8.9 us
std::string duration_text(double seconds);                  // how long to wait: 42 s, 3:07, 1:02:03
std::string shell_word(const std::string& text);            // quoted where a shell would take it apart: 'my run'
std::string joined(const std::vector<std::string>& names);  // a, b, c

}  // namespace ovq
