// Documents on disk: a text file is one document; in a folder every .txt file is one, in the order of their names.
#pragma once

#include <string>
#include <vector>

namespace ovq::text {

// Errors are DataErrors that begin with "[op]".
std::vector<std::string> document_paths(const char* op, const std::string& path);
std::vector<std::string> document_paths(const char* op, const std::vector<std::string>& paths);

// Returns the whole content; an empty file is an error.
std::string read_text_file(const char* op, const std::string& path);
// The same; text that is not UTF-8 is an error that names the position.
std::string read_utf8_file(const char* op, const std::string& path);

}  // namespace ovq::text
