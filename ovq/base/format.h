// Readable numbers. Bytes are decimal everywhere: 1 kB = 1000 bytes.
#pragma once

#include <string>
#include <vector>

namespace ovq {

std::string bytes_text(double bytes);                       // 512 B, 1.5 MB, 34 MB
std::string seconds_text(double seconds);                   // a measured time: 1.234 s, 5.67 ms, 8.9 us
std::string duration_text(double seconds);                  // a waiting time: 42 s, 3:07, 1:02:03
std::string shell_word(const std::string& text);            // quoted if a shell would split or expand it: 'my run'
std::string joined(const std::vector<std::string>& names);  // a, b, c

}  // namespace ovq
