// Documents on disk: a text file is one, of a folder every .txt file in it, by name.
#pragma once

#include <string>
#include <vector>

namespace ovq::text {

// Errors are DataErrors and begin with "[op]".
std::vector<std::string> document_paths(const char* op, const std::string& path);
std::vector<std::string> document_paths(const char* op, const std::vector<std::string>& paths);

// Whole content; an empty file is an error.
std::string read_text_file(const char* op, const std::string& path);
// The same; what is not UTF-8 is an error that says where.
std::string read_utf8_file(const char* op, const std::string& path);

}  // namespace ovq::text
